#include "tessera/checkpoint/optimizer_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstring>
#include <functional>
#include <map>
#include <mutex>

#include "tessera/base/errors.h"

namespace tessera {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

/// What one parameter's state, or one group's options, consist of: tensors by name, and numbers
/// with how to set them.
struct Number {
  PlainValue value;
  std::function<void(const PlainValue&)> set;
};
struct Fields {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, Number> numbers;
  std::function<void(int64_t)> set_step = {};
  int64_t step = 0;
};

template <typename Options>
void add_real(Fields& fields, const std::string& name, double& (Options::*member)(),
              Options& options) {
  double& value = (options.*member)();
  fields.numbers[name] = {value, [&value](const PlainValue& given) { value = given.real(); }};
}

template <typename Options>
void add_flag(Fields& fields, const std::string& name, bool& (Options::*member)(),
              Options& options) {
  bool& value = (options.*member)();
  fields.numbers[name] = {value, [&value](const PlainValue& given) { value = given.boolean(); }};
}

template <typename State>
void add_step(Fields& fields, State& state) {
  int64_t& step = state.step();
  fields.step = step;
  fields.set_step = [&step](int64_t value) { step = value; };
}

/// The state of one parameter, made if the optimizer has not yet.
template <typename State>
State& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (slot == nullptr) slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

/// Adds a tensor of the state; zeros if the optimizer has not made it yet.
void add_tensor(Fields& fields, const char* name, at::Tensor& tensor, const at::Tensor& parameter) {
  if (!tensor.defined()) tensor = at::zeros_like(parameter);
  fields.tensors[name] = tensor;
}

template <typename Options>
void add_betas(Fields& fields, Options& options) {
  auto& betas = options.betas();
  fields.numbers["betas"] = {
      PlainValue::tuple({std::get<0>(betas), std::get<1>(betas)}),
      [&betas](const PlainValue& given) {
        const auto* pair = std::get_if<PlainValue::Sequence>(&given.data());
        require(pair != nullptr && pair->items.size() == 2, "betas are ", given, ", not a pair");
        betas = std::make_tuple(pair->items[0].real(), pair->items[1].real());
      }};
}

/// Adam and AdamW differ in nothing that is stored.
template <typename Options, typename ParamState>
struct AdamKind {
  static Fields options(OptimizerOptions& given) {
    auto& own = static_cast<Options&>(given);
    Fields out;
    add_real<Options>(out, "lr", &Options::lr, own);
    add_real<Options>(out, "eps", &Options::eps, own);
    add_real<Options>(out, "weight_decay", &Options::weight_decay, own);
    add_flag<Options>(out, "amsgrad", &Options::amsgrad, own);
    add_betas(out, own);
    return out;
  }
  static Fields state(Optimizer& optimizer, OptimizerOptions& given, const at::Tensor& parameter) {
    auto& own = state_of<ParamState>(optimizer, parameter);
    Fields out;
    add_tensor(out, "exp_avg", own.exp_avg(), parameter);
    add_tensor(out, "exp_avg_sq", own.exp_avg_sq(), parameter);
    if (static_cast<Options&>(given).amsgrad()) {
      add_tensor(out, "max_exp_avg_sq", own.max_exp_avg_sq(), parameter);
    }
    add_step(out, own);
    return out;
  }
};

struct SgdKind {
  using Options = torch::optim::SGDOptions;
  static Fields options(OptimizerOptions& given) {
    auto& own = static_cast<Options&>(given);
    Fields out;
    add_real<Options>(out, "lr", &Options::lr, own);
    add_real<Options>(out, "momentum", &Options::momentum, own);
    add_real<Options>(out, "dampening", &Options::dampening, own);
    add_real<Options>(out, "weight_decay", &Options::weight_decay, own);
    add_flag<Options>(out, "nesterov", &Options::nesterov, own);
    return out;
  }
  static Fields state(Optimizer& optimizer, OptimizerOptions& given, const at::Tensor& parameter) {
    Fields out;
    if (static_cast<Options&>(given).momentum() == 0) return out;
    auto& own = state_of<torch::optim::SGDParamState>(optimizer, parameter);
    add_tensor(out, "momentum_buffer", own.momentum_buffer(), parameter);
    return out;
  }
};

struct RmspropKind {
  using Options = torch::optim::RMSpropOptions;
  static Fields options(OptimizerOptions& given) {
    auto& own = static_cast<Options&>(given);
    Fields out;
    add_real<Options>(out, "lr", &Options::lr, own);
    add_real<Options>(out, "alpha", &Options::alpha, own);
    add_real<Options>(out, "eps", &Options::eps, own);
    add_real<Options>(out, "weight_decay", &Options::weight_decay, own);
    add_real<Options>(out, "momentum", &Options::momentum, own);
    add_flag<Options>(out, "centered", &Options::centered, own);
    return out;
  }
  static Fields state(Optimizer& optimizer, OptimizerOptions& given, const at::Tensor& parameter) {
    auto& options = static_cast<Options&>(given);
    auto& own = state_of<torch::optim::RMSpropParamState>(optimizer, parameter);
    Fields out;
    add_tensor(out, "square_avg", own.square_avg(), parameter);
    if (options.momentum() > 0) {
      add_tensor(out, "momentum_buffer", own.momentum_buffer(), parameter);
    }
    if (options.centered()) add_tensor(out, "grad_avg", own.grad_avg(), parameter);
    add_step(out, own);
    return out;
  }
};

struct AdagradKind {
  using Options = torch::optim::AdagradOptions;
  static Fields options(OptimizerOptions& given) {
    auto& own = static_cast<Options&>(given);
    Fields out;
    add_real<Options>(out, "lr", &Options::lr, own);
    add_real<Options>(out, "lr_decay", &Options::lr_decay, own);
    add_real<Options>(out, "weight_decay", &Options::weight_decay, own);
    add_real<Options>(out, "eps", &Options::eps, own);
    return out;
  }
  static Fields state(Optimizer& optimizer, OptimizerOptions& given, const at::Tensor& parameter) {
    auto& own = state_of<torch::optim::AdagradParamState>(optimizer, parameter);
    if (!own.sum().defined()) {
      own.sum(at::full_like(parameter, static_cast<Options&>(given).initial_accumulator_value()));
    }
    Fields out;
    out.tensors["sum"] = own.sum();
    add_step(out, own);
    return out;
  }
};

struct Kind {
  Fields (*options)(OptimizerOptions&);
  Fields (*state)(Optimizer&, OptimizerOptions&, const at::Tensor&);
};

template <typename K>
Kind kind() {
  return {K::options, K::state};
}

Kind kind_of(Optimizer& optimizer) {
  using namespace torch::optim;
  if (dynamic_cast<Adam*>(&optimizer) != nullptr)
    return kind<AdamKind<AdamOptions, AdamParamState>>();
  if (dynamic_cast<AdamW*>(&optimizer) != nullptr) {
    return kind<AdamKind<AdamWOptions, AdamWParamState>>();
  }
  if (dynamic_cast<SGD*>(&optimizer) != nullptr) return kind<SgdKind>();
  if (dynamic_cast<RMSprop*>(&optimizer) != nullptr) return kind<RmspropKind>();
  if (dynamic_cast<Adagrad*>(&optimizer) != nullptr) return kind<AdagradKind>();
  throw NotSupported("a checkpoint of an optimizer other than Adam, AdamW, SGD, RMSprop, Adagrad");
}

using Visit = std::function<void(const std::string& name, Fields fields)>;

/// Calls `visit` with every group's options and every parameter's state.
void visit_optimizer(const std::string& prefix, Optimizer& optimizer,
                     const torch::nn::Module& module, const Visit& visit) {
  const c10::AutoGradMode no_grad(false);
  std::map<const void*, std::string> names;
  for (const auto& item : module.named_parameters()) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  const Kind kind = kind_of(optimizer);
  auto& groups = optimizer.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    std::vector<PlainValue> parameters;
    for (const auto& parameter : groups[i].params()) {
      const auto name = names.find(parameter.unsafeGetTensorImpl());
      require(
          name != names.end(), "the optimizer holds a parameter of ",
          [&] { return shape_text(parameter.sizes()); }, " that the module does not");
      parameters.emplace_back(name->second);
      visit(join_text(prefix, "state.", name->second, "."),
            kind.state(optimizer, groups[i].options(), parameter));
    }
    Fields options = kind.options(groups[i].options());
    options.numbers["params"] = {PlainValue::list(std::move(parameters)), [](const PlainValue&) {}};
    visit(join_text(prefix, "param_groups.", i, "."), std::move(options));
  }
}

}  // namespace

void add_optimizer(State& state, const std::string& prefix, Optimizer& optimizer,
                   const torch::nn::Module& module) {
  visit_optimizer(prefix, optimizer, module, [&](const std::string& name, const Fields& fields) {
    for (const auto& [field, tensor] : fields.tensors) state[name + field] = tensor;
    for (const auto& [field, number] : fields.numbers) state[name + field] = number.value;
    if (fields.set_step) {
      state[name + "step"] = at::full({}, static_cast<double>(fields.step), at::kFloat);
    }
  });
}

void take_optimizer(const State& state, const std::string& prefix, Optimizer& optimizer,
                    const torch::nn::Module& module) {
  visit_optimizer(prefix, optimizer, module, [&](const std::string& name, const Fields& fields) {
    for (const auto& [field, number] : fields.numbers) {
      number.set(std::get<PlainValue>(state.at(name + field)));
    }
    if (fields.set_step) {
      const auto& step = std::get<at::Tensor>(state.at(name + "step"));
      fields.set_step(static_cast<int64_t>(step.item<double>()));
    }
  });
}

void add_generator(State& state, const std::string& name, const at::Generator& generator) {
  at::Generator own = generator;
  const std::lock_guard lock(own.mutex());
  const at::Tensor bytes = own.get_state().contiguous();
  state[name] = PlainValue::bytes(
      std::string(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()));
}

void take_generator(const State& state, const std::string& name, at::Generator& generator) {
  const std::string& blob = std::get<PlainValue>(state.at(name)).blob();
  at::Tensor bytes = at::empty({static_cast<int64_t>(blob.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), blob.data(), blob.size());
  const std::lock_guard lock(generator.mutex());
  generator.set_state(bytes);
}

}  // namespace tessera
