#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <numbers>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/decide/decide.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/random/random_values.h"

/// Random ops on sharded tensors. Those with independent elements (uniform_, normal_, dropout,
/// rand_like, ...) draw by global index, see dtensor/random/draws.h: the result depends neither on
/// the number of ranks nor on the placements. The others (multinomial, poisson, ...) run on
/// replicated inputs with generators in the same state, which is correct but gathers.
namespace tessera::dtensor {
namespace {

/// The arguments of the call on top of the stack.
class Call {
 public:
  Call(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack)
      : entry_(entry), op_(op), stack_(stack), base_(stack.size() - entry.args.size()) {
    // The Meta kernel checks the arguments (a negative deviation, a dtype that cannot represent it)
    // on global metadata, so all ranks throw together.
    infer_results(entry, op, stack);
  }

  const c10::IValue& arg(size_t i) const { return stack_[base_ + i]; }
  at::Tensor tensor(size_t i) const { return arg(i).toTensor(); }
  double number(size_t i) const { return arg(i).toScalar().toDouble(); }
  int64_t integer(size_t i) const { return arg(i).toInt(); }

  std::optional<at::Generator> generator() const {
    for (size_t i = 0; i < entry_.args.size(); ++i) {
      if (entry_.args[i] == ArgKind::generator && !arg(i).isNone()) return arg(i).toGenerator();
    }
    return std::nullopt;
  }
  Draws draws() const { return Draws(generator(), tensor(0).device()); }

  /// For a `_like` op: an empty tensor with the dtype, layout and so on that its arguments request.
  at::Tensor empty_like() const {
    std::optional<at::ScalarType> dtype;
    std::optional<at::MemoryFormat> format;
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arg(i).isNone()) continue;
      if (arguments[i].name() == "dtype") dtype = arg(i).toScalarType();
      if (arguments[i].name() == "memory_format") format = arg(i).toMemoryFormat();
    }
    at::TensorOptions options = tensor(0).options();
    if (dtype) options = options.dtype(*dtype);
    return at::empty_like(tensor(0), options, format);
  }

  template <typename... Results>
  bool give(Results&&... results) {
    torch::jit::drop(stack_, entry_.args.size());
    torch::jit::push(stack_, std::forward<Results>(results)...);
    return true;
  }

 private:
  const OpEntry& entry_;
  const c10::OperatorHandle& op_;
  Stack& stack_;
  size_t base_;
};

/// Values of one distribution for a tensor, from the numbers among the arguments.
using Fill = at::Tensor (*)(const at::Tensor& self, Draws& draws, const Call& call);

at::Tensor fill_uniform(const at::Tensor& self, Draws& draws, const Call& call) {
  return uniform_for(self, draws, call.number(1), call.number(2));
}
at::Tensor fill_normal(const at::Tensor& self, Draws& draws, const Call& call) {
  return normal_for(self, draws, call.number(1), call.number(2));
}
at::Tensor fill_log_normal(const at::Tensor& self, Draws& draws, const Call& call) {
  require(call.number(2) > 0, "log_normal_(std=", call.number(2), "): std must be positive");
  return normal_for(self, draws, call.number(1), call.number(2)).exp_();
}
at::Tensor fill_exponential(const at::Tensor& self, Draws& draws, const Call& call) {
  require(call.number(1) > 0, "exponential_(lambd=", call.number(1), "): lambd must be positive");
  return inside_for(self, draws).log_().mul_(-1 / call.number(1));
}
at::Tensor fill_cauchy(const at::Tensor& self, Draws& draws, const Call& call) {
  require(call.number(2) > 0, "cauchy_(sigma=", call.number(2), "): sigma must be positive");
  at::Tensor angle = inside_for(self, draws).sub_(0.5).mul_(std::numbers::pi);
  return angle.tan_().mul_(call.number(2)).add_(call.number(1));
}
at::Tensor fill_geometric(const at::Tensor& self, Draws& draws, const Call& call) {
  const double p = call.number(1);
  require(p > 0 && p < 1, "geometric_(p=", p, "): p must be in (0, 1)");
  at::Tensor drawn = draws.inside(sharding_of(self), at::kDouble);
  return drawn.log_().div_(std::log1p(-p)).ceil_().clamp_min_(1);
}
/// Rejects values outside of [0, 1] and NaN.
double chance(double p, const char* op) {
  require(p >= 0 && p <= 1, op, "(p=", p, "): p must be in [0, 1]");
  return p;
}

at::Tensor fill_bernoulli(const at::Tensor& self, Draws& draws, const Call& call) {
  return chances_for(sharding_of(self), draws).lt_(chance(call.number(1), "bernoulli"));
}

at::Tensor fill_random(const at::Tensor& self, Draws& draws, const Call&) {
  return between(self, draws, 0, random_limit(self.scalar_type()));
}
at::Tensor fill_random_to(const at::Tensor& self, Draws& draws, const Call& call) {
  require(call.integer(1) > 0, "random_(to=", call.integer(1), "): nothing is in [0, to)");
  return between(self, draws, 0, static_cast<uint64_t>(call.integer(1)));
}
at::Tensor fill_random_from(const at::Tensor& self, Draws& draws, const Call& call) {
  const int64_t from = call.integer(1);
  if (call.arg(2).isNone()) {
    return between(self, draws, from,
                   random_limit(self.scalar_type()) - static_cast<uint64_t>(from));
  }
  const int64_t to = call.integer(2);
  require(from < to, "random_(from=", from, ", to=", to, "): nothing is in [from, to)");
  return between(self, draws, from, static_cast<uint64_t>(to) - static_cast<uint64_t>(from));
}

template <Fill fill>
bool fill_and_give(Call& call, const at::Tensor& result) {
  Draws draws = call.draws();
  write_drawn(result, fill(result, draws, call));
  return call.give(result);
}

/// uniform_(self, ...), normal_(self, ...): fills self.
template <Fill fill>
bool in_place(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  Call call(entry, op, stack);
  return fill_and_give<fill>(call, call.tensor(0));
}

/// uniform(self, ...), bernoulli(self, p): the same into a new tensor.
template <Fill fill, at::MemoryFormat kFormat = at::MemoryFormat::Preserve>
bool functional(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  Call call(entry, op, stack);
  return fill_and_give<fill>(call, at::empty_like(call.tensor(0), kFormat));
}

/// rand_like, randn_like, randint_like: into a new tensor of the requested dtype.
template <Fill fill>
bool like(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  Call call(entry, op, stack);
  return fill_and_give<fill>(call, call.empty_like());
}

at::Tensor unit_uniform(const at::Tensor& self, Draws& draws, const Call&) {
  return uniform_for(self, draws, 0, 1);
}
at::Tensor unit_normal(const at::Tensor& self, Draws& draws, const Call&) {
  return normal_for(self, draws, 0, 1);
}
at::Tensor tensor_limit(const at::Tensor& self, Draws& draws, const Call& call) {
  return between(self, draws, 0, static_cast<uint64_t>(call.tensor(1).item().toLong()));
}

/// bernoulli(p): one draw per element of p.
bool bernoulli_of(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  Call call(entry, op, stack);
  const at::Tensor p = call.tensor(0);
  Draws draws = call.draws();
  const at::Tensor drawn = sharded_like(p, chances_for(sharding_of(p), draws));
  return call.give(drawn.lt(p).to(p.scalar_type()).contiguous());
}

/// bernoulli_(self, p) and bernoulli(self, p) with a probability per element of self.
template <bool kInPlace>
bool bernoulli_by(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  Call call(entry, op, stack);
  const at::Tensor self = kInPlace ? call.tensor(0) : at::empty_like(call.tensor(0));
  require(sharded_meta(self) != nullptr, entry.name, " of a plain tensor with sharded chances");
  Draws draws = call.draws();
  const at::Tensor drawn = sharded_like(self, chances_for(sharding_of(self), draws));
  self.copy_(drawn.lt(call.tensor(1)));
  return call.give(self);
}

/// normal(mean, std) where one or both are tensors.
bool normal_of(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  Call call(entry, op, stack);
  const at::Tensor mean = call.arg(0).isTensor() ? call.tensor(0) : at::Tensor();
  const at::Tensor deviation = call.arg(1).isTensor() ? call.tensor(1) : at::Tensor();
  // A sharded tensor with the result's shape determines the sharding of the numbers.
  at::Tensor shaped = mean.defined() ? mean : deviation;
  if (mean.defined() && deviation.defined()) {
    const bool first = mean.dim() == deviation.dim() ? mean.numel() >= deviation.numel()
                                                     : mean.dim() > deviation.dim();
    shaped = first ? mean : deviation;
    if (shaped.sizes() != at::infer_size(mean.sizes(), deviation.sizes())) {
      shaped = at::add(mean, deviation);
    }
  }
  if (sharded_meta(shaped) == nullptr) shaped = at::add(mean, deviation);
  Draws draws(call.generator(), shaped.device());
  at::Tensor out = sharded_like(shaped, normal_for(shaped, draws, 0, 1)).to(shaped.scalar_type());
  out = deviation.defined() ? out * deviation : out * call.number(1);
  return call.give(mean.defined() ? out + mean : out + call.number(0));
}

/// native_dropout(input, p, train): the result and the mask of kept elements.
bool native_dropout(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  Call call(entry, op, stack);
  const at::Tensor input = call.tensor(0);
  const double p = chance(call.number(1), "native_dropout");
  if (p == 0 || (!call.arg(2).isNone() && !call.arg(2).toBool())) {
    return call.give(input.clone(), at::ones_like(input, input.options().dtype(at::kBool)));
  }
  Draws draws = call.draws();
  // By the comparison of bernoulli_(1 - p), with which the CPU's dropout draws its mask.
  const at::Tensor kept = sharded_like(input, chances_for(sharding_of(input), draws).lt(1 - p));
  const at::Tensor out = input * kept;
  return call.give(p < 1 ? out * (1 / (1 - p)) : out, kept);
}

enum class Noise : uint8_t { written, returned };

/// rrelu_with_noise(self, noise, lower, upper, training): draws slopes where self is not positive.
template <bool kInPlace, Noise kNoise>
bool rrelu(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  Call call(entry, op, stack);
  const at::Tensor self = call.tensor(0);
  at::Tensor noise = call.tensor(1);
  const double lower = call.number(2);
  const double upper = call.number(3);
  at::Tensor out;
  if (call.arg(4).toBool()) {
    Draws draws = call.draws();
    const at::Tensor slopes = sharded_like(self, uniform_for(self, draws, lower, upper));
    const at::Tensor drawn = at::where(self.le(0), slopes.to(self.scalar_type()), 1.0);
    out = self * drawn;
    if (kNoise == Noise::written) {
      noise.copy_(drawn);
    } else {
      noise = drawn;
    }
  } else {
    out = at::leaky_relu(self, (lower + upper) / 2);
  }
  if (kInPlace) {
    self.copy_(out);
    return call.give(self);
  }
  if (kNoise == Noise::returned) return call.give(out, noise);
  return call.give(out);
}

}  // namespace

void install_random() {
  const auto set = [](const std::string& name, Decomposition made_of) {
    // Some overloads were added in later versions of libtorch.
    if (has_kernel(name)) set_decomposition(name, made_of);
  };
  const auto fills = [&](const std::string& name, Decomposition written, Decomposition made) {
    set("aten::" + name + "_", written);
    set("aten::" + name, made);
  };
  fills("uniform", in_place<fill_uniform>, functional<fill_uniform>);
  fills("log_normal", in_place<fill_log_normal>, functional<fill_log_normal>);
  fills("exponential", in_place<fill_exponential>, functional<fill_exponential>);
  fills("cauchy", in_place<fill_cauchy>, functional<fill_cauchy>);
  fills("geometric", in_place<fill_geometric>, functional<fill_geometric>);
  fills("random", in_place<fill_random>, functional<fill_random>);
  set("aten::random_.to", in_place<fill_random_to>);
  set("aten::random.to", functional<fill_random_to>);
  set("aten::random_.from", in_place<fill_random_from>);
  set("aten::random.from", functional<fill_random_from>);
  set("aten::normal_", in_place<fill_normal>);
  set("aten::normal_functional", functional<fill_normal>);
  set("aten::bernoulli_.float", in_place<fill_bernoulli>);
  set("aten::bernoulli.p", functional<fill_bernoulli, at::MemoryFormat::Contiguous>);
  set("aten::bernoulli", bernoulli_of);
  set("aten::bernoulli_.Tensor", bernoulli_by<true>);
  set("aten::bernoulli.Tensor", bernoulli_by<false>);
  for (const char* op :
       {"aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor"}) {
    set(op, normal_of);
  }
  for (const char* generator : {"", ".generator"}) {
    set(std::string("aten::rand_like") + generator, like<unit_uniform>);
    set(std::string("aten::randn_like") + generator, like<unit_normal>);
    set(std::string("aten::randint_like") + generator, like<fill_random_to>);
  }
  set("aten::randint_like.low_dtype", like<fill_random_from>);
  set("aten::randint_like.low_generator_dtype", like<fill_random_from>);
  set("aten::randint_like.Tensor", like<tensor_limit>);
  set("aten::randint_like.Tensor_generator", like<tensor_limit>);
  set("aten::native_dropout", native_dropout);
  set("aten::rrelu_with_noise", rrelu<false, Noise::written>);
  set("aten::rrelu_with_noise_", rrelu<true, Noise::written>);
  set("aten::rrelu_with_noise_functional", rrelu<false, Noise::returned>);
}

}  // namespace tessera::dtensor
