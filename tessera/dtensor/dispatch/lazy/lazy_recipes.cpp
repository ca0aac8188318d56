#include "tessera/dtensor/dispatch/lazy/lazy_recipes.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <optional>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dispatch.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dtypes.h"
#include "tessera/dtensor/dispatch/op/operands.h"

namespace tessera::dtensor {
namespace {

std::shared_ptr<LazyLocal> origin_of(const std::shared_ptr<LazyLocal>& lazy) {
  const auto origin = lazy->origin();
  return origin != nullptr ? origin : lazy;
}

at::Tensor wrap_recipe(at::Tensor local, const Sharding& sharding, c10::Device device,
                       std::shared_ptr<LazyLocal> lazy) {
  at::Tensor made = wrap_lazy(std::move(local), sharding, device, std::move(lazy));
  if (runs_backward()) mark_made_in_backward(made);
  return made;
}

/// The result of an op on the shards of lazy tensors.
class LazyResult final : public LazyLocal, public FromUnreducedLeaf {
 public:
  LazyResult(at::Tensor computed, const std::shared_ptr<LazyLocal>& of,
             const FromUnreducedLeaf& operands)
      : FromUnreducedLeaf(operands), computed_(std::move(computed)), origin_(origin_of(of)) {}

  at::Tensor unsharded() override { return origin_->unsharded_from(computed_); }
  at::Tensor unsharded_from(const at::Tensor& computed) override {
    return origin_->unsharded_from(computed);
  }
  std::shared_ptr<LazyLocal> origin() const override { return origin_; }
  at::Tensor shards() override { return computed_; }
  void shards_change() override {}
  std::optional<at::ScalarType> compute_dtype() const override { return computed_.scalar_type(); }

 private:
  at::Tensor computed_;
  std::shared_ptr<LazyLocal> origin_;
};

/// The version of the shards. Taken at the root, because a view created in inference mode has no
/// version counter.
int64_t version_of(LazyLocal& lazy) {
  const at::Tensor shards = lazy.root().shards();
  return sharded_meta(shards)->local().unsafeGetTensorImpl()->version_counter().current_version();
}

/// A lazy tensor cast to another dtype. Its shards are cast immediately: it is a copy. While the
/// shards of the base are unchanged, its unsharded value is that of the base, cast. So autocast,
/// which caches casts of parameters, and autograd, which saves them, hold shards only.
class LazyCast final : public LazyLocal, public FromUnreducedLeaf {
 public:
  /// `writes` is the version counter of the source tensor; its shards may be written to directly.
  LazyCast(std::shared_ptr<LazyLocal> base, at::Tensor computed, c10::VariableVersion writes)
      : base_(std::move(base)),
        computed_(std::move(computed)),
        writes_(std::move(writes)),
        written_(writes_.current_version()),
        version_(version_of(*base_)) {}

  at::Tensor unsharded() override {
    if (changed_ || writes_.current_version() != written_ || version_of(*base_) != version_) {
      return base_->unsharded_from(computed_);
    }
    at::Tensor cast = base_->unsharded().to(computed_.scalar_type());
    base_->release();
    return cast;
  }
  at::Tensor unsharded_from(const at::Tensor& computed) override {
    return base_->unsharded_from(computed);
  }
  std::shared_ptr<LazyLocal> origin() const override { return origin_of(base_); }
  at::Tensor shards() override { return computed_; }
  void shards_change() override { changed_ = true; }
  std::optional<at::ScalarType> compute_dtype() const override { return computed_.scalar_type(); }

 private:
  std::shared_ptr<LazyLocal> base_;
  at::Tensor computed_;
  c10::VariableVersion writes_;
  uint32_t written_;
  int64_t version_;
  bool changed_ = false;
};

/// A view of the unsharded tensor, created without the dispatcher, so autograd does not see it.
/// Undefined if the tensor does not have the strides of its sharding.
at::Tensor seen_as(const at::Tensor& whole, const LazyLocal::KnownView& view) {
  const c10::TensorImpl& base = *whole.unsafeGetTensorImpl();
  if (sharded_meta(whole) != nullptr || !base.has_storage() ||
      !std::ranges::equal(whole.sizes(), view.of.shape()) ||
      !std::ranges::equal(whole.strides(), view.of.stride())) {
    return {};
  }
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(base.unsafe_storage()),
                                                   base.key_set(), base.dtype());
  impl->set_sizes_and_strides(view.is.shape(), view.is.stride());
  impl->set_storage_offset(base.storage_offset() + view.offset);
  return at::Tensor(std::move(impl));
}

/// A view of a lazy tensor: the op, its arguments, and the index of the result.
struct Recipe {
  c10::OperatorHandle op;
  Stack args;                  ///< the first is replaced by the base
  std::optional<size_t> item;  ///< of a list of results
  bool retypes = false;        ///< reinterprets the same bytes as another dtype
  /// The dtype that the base reported when the view was taken. Matters if `retypes`.
  at::ScalarType base_dtype = at::kFloat;
};

class LazyView final : public LazyLocal {
 public:
  LazyView(std::shared_ptr<LazyLocal> base, Recipe recipe,
           std::shared_ptr<const KnownView> known = nullptr)
      : base_(std::move(base)), recipe_(std::move(recipe)), known_(std::move(known)) {}

  at::Tensor unsharded() override {
    at::Tensor whole = base_->unsharded();
    if (known_ != nullptr) {
      if (at::Tensor seen = seen_as(whole, *known_); seen.defined()) return seen;
    }
    return replayed(std::move(whole));
  }
  void release() override { base_->release(); }
  at::Tensor unsharded_from(const at::Tensor& computed) override {
    return base_->unsharded_from(computed);
  }
  std::shared_ptr<LazyLocal> origin() const override { return origin_of(base_); }
  at::Tensor shards() override {
    at::Tensor base = base_->shards();
    if (recipe_.retypes) base = base.to(recipe_.base_dtype);
    return replayed(std::move(base));
  }
  void shards_change() override {
    if (recipe_.retypes && base_->shards().scalar_type() != recipe_.base_dtype) {
      throw NotSupported(
          "a write to the bytes of a fully_shard parameter that computes in another dtype than it "
          "rests in (mp_policy.param_dtype); write to it outside of the module's forward");
    }
    base_->shards_change();
  }
  std::optional<at::ScalarType> compute_dtype() const override {
    return recipe_.retypes ? std::nullopt : base_->compute_dtype();
  }
  LazyLocal& root() override { return base_->root(); }

 private:
  at::Tensor replayed(at::Tensor base) const {
    Stack stack = recipe_.args;
    // The lazy tensor does not carry the conjugate bit that its value may have, so libtorch
    // accepted an op that it would have rejected: the bytes of a lazy conjugate do not hold the
    // conjugated values.
    stack[0] = recipe_.retypes ? base.resolve_conj().resolve_neg() : std::move(base);
    recipe_.op.callBoxed(&stack);
    return recipe_.item ? stack[0].toTensorVector()[*recipe_.item] : stack[0].toTensor();
  }

  std::shared_ptr<LazyLocal> base_;
  Recipe recipe_;
  std::shared_ptr<const KnownView> known_;  // if there is one result
};

/// A tensor without memory but with the metadata of another: view ops on it compute the view's
/// metadata.
at::Tensor outline(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           tensor.options().device(c10::DeviceType::Meta));
}

/// The arguments of a view op as numbers; nullopt if one of them is something else.
std::optional<std::vector<int64_t>> as_numbers(const Stack& args) {
  std::vector<int64_t> out;
  for (size_t i = 1; i < args.size(); ++i) {
    if (args[i].isInt()) {
      out.push_back(args[i].toInt());
    } else if (args[i].isIntList()) {
      const auto list = args[i].toIntVector();
      out.push_back(static_cast<int64_t>(list.size()));
      out.insert(out.end(), list.begin(), list.end());
    } else {
      return std::nullopt;
    }
  }
  return out;
}

/// A tensor may report another dtype than its shards have; its views then report it too.
Sharding as_reported(const at::Tensor& tensor, const Sharding& sharding) {
  const auto dtype = static_cast<DType>(tensor.scalar_type());
  return sharding.dtype() == dtype ? sharding : sharding.with_dtype(dtype);
}

bool is_identity(const OpEntry& entry) {
  return entry.name == "aten::detach" || entry.name == "aten::alias";
}

}  // namespace

at::Tensor as_lazy_result(const at::Tensor& computed, const std::shared_ptr<LazyLocal>& of,
                          const FromUnreducedLeaf& operands) {
  const ShardedMeta* meta = sharded_meta(computed);
  if (meta == nullptr || meta->lazy() != nullptr || meta->is_copy_of_view()) return computed;
  return wrap_recipe(meta->local(), meta->sharding(), computed.device(),
                     std::make_shared<LazyResult>(computed, of, operands));
}

bool is_cast(const OpEntry& entry, const Stack& stack) {
  if (entry.name != "aten::_to_copy") return false;
  const size_t base = stack.size() - entry.args.size();
  if (stack[base].toTensor().is_inference()) return false;  // it has no version counter
  constexpr size_t kLayout = 2, kDevice = 3, kPinMemory = 4, kMemoryFormat = 6;
  for (const size_t i : {kLayout, kPinMemory, kMemoryFormat}) {
    if (!stack[base + i].isNone()) return false;
  }
  const c10::IValue& device = stack[base + kDevice];
  return device.isNone() || device.toDevice() == stack[base].toTensor().device();
}

void cast_lazily(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  c10::IValue& argument = stack[stack.size() - entry.args.size()];
  const std::shared_ptr<LazyLocal> lazy = sharded_meta(argument.toTensor())->lazy();
  const c10::VariableVersion writes = argument.toTensor().unsafeGetTensorImpl()->version_counter();
  const at::Tensor source = argument.toTensor();
  argument = shards_to_read(source, *lazy);
  op.callBoxed(&stack);
  const at::Tensor computed = torch::jit::pop(stack).toTensor();
  const ShardedMeta& meta = *sharded_meta(computed);
  auto cast = std::make_shared<LazyCast>(lazy, computed, writes);
  cast->add_operand(source);
  torch::jit::push(stack, wrap_recipe(meta.local(), meta.sharding(), computed.device(), cast));
}

void view_lazily(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  const at::Tensor self = stack[base].toTensor();
  const ShardedMeta& meta = *sharded_meta(self);
  if (is_identity(entry)) {
    torch::jit::drop(stack, entry.args.size());
    torch::jit::push(stack, wrap_recipe(meta.local(), meta.sharding(), self.device(), meta.lazy()));
    report_dtype(stack.back().toTensor(), self.scalar_type());
    return;
  }
  Stack args(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
  args[0] = c10::IValue();
  LazyLocal::KnownView view{&op.schema(), {}, as_reported(self, meta.sharding()), {}, 0};
  const auto numbers = as_numbers(args);
  if (numbers) {
    view.arguments = *numbers;
    if (const auto known = meta.lazy()->root().find_view(view)) {
      torch::jit::drop(stack, entry.args.size());
      Recipe recipe{op, std::move(args), std::nullopt};
      torch::jit::push(
          stack, wrap_recipe(at::Tensor(), known->is, self.device(),
                             std::make_shared<LazyView>(meta.lazy(), std::move(recipe), known)));
      return;
    }
  }
  const auto wrapped = [&](const at::Tensor& like, std::optional<size_t> item) {
    Recipe recipe{op, args, item, like.scalar_type() != self.scalar_type(), self.scalar_type()};
    // Nominally replicated on every rank; the recipe defines its value.
    return wrap_recipe(at::Tensor(), as_replicated(like, meta.sharding().mesh()), self.device(),
                       std::make_shared<LazyView>(meta.lazy(), std::move(recipe)));
  };
  stack[base] = outline(self);
  op.callBoxed(&stack);
  const c10::IValue result = torch::jit::pop(stack);
  if (result.isTensor()) {
    const at::Tensor& like = result.toTensor();
    torch::jit::push(stack, wrapped(like, std::nullopt));
    // Conjugates and views as another dtype do not just select elements.
    const bool same_elements =
        like.scalar_type() == self.scalar_type() && !like.is_conj() && !like.is_neg();
    if (numbers && same_elements) {
      view.is = as_replicated(like, meta.sharding().mesh());
      view.offset = like.storage_offset();
      meta.lazy()->root().keep_view(std::move(view));
    }
    return;
  }
  c10::List<at::Tensor> views;
  const auto likes = result.toTensorVector();
  for (size_t i = 0; i < likes.size(); ++i) views.push_back(wrapped(likes[i], i));
  torch::jit::push(stack, std::move(views));
}

}  // namespace tessera::dtensor
