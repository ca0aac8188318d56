#include "tessera/dtensor/dispatch/outside_call.h"

#include <ATen/core/List.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/dtensor/tensor/layout.h"

namespace tessera::dtensor {
namespace {

/// The first tensor among the local arguments; undefined if there is none.
at::Tensor first_tensor(std::span<const c10::IValue> args) {
  for (const c10::IValue& arg : args) {
    if (arg.isTensor() && arg.toTensor().defined()) return arg.toTensor();
    if (!arg.isTensorList()) continue;
    for (const at::Tensor& item : arg.toTensorVector()) {
      if (item.defined()) return item;
    }
  }
  return {};
}

at::TensorOptions options_of(const at::Tensor& like, const Sharding& sharding) {
  const auto dtype = static_cast<at::ScalarType>(sharding.dtype());
  return like.defined() ? like.options().dtype(dtype) : at::dtype(dtype);
}

/// Makes the local results of one call.
class EmptyResults {
 public:
  EmptyResults(const OpEntry& entry, const Decision& decision, std::span<const c10::IValue> args)
      : entry_(entry), decision_(decision), args_(args), like_(first_tensor(args)) {}

  at::Tensor make(size_t index) const {
    if (is_unwanted(index)) return {};
    require(index < decision_.results.size() && decision_.results[index].defined(), entry_.name,
            " on mesh ", decision_.mesh,
            ", called on a rank outside it: the shape of its result is known only to the mesh's "
            "ranks; call it there alone");
    const Sharding& sharding = decision_.results[index];
    const bool is_alias = entry_.is_view && decision_.kernel == nullptr && like_.defined() &&
                          like_.has_storage() && !like_.is_meta();
    if (!is_alias) return at::empty(as_ints(sharding.local_shape()), options_of(like_, sharding));
    const at::Tensor view = empty_view(like_, sharding);
    if (entry_.name == "aten::_conj") return at::_conj(view);
    return entry_.name == "aten::_neg_view" ? at::_neg_view(view) : view;
  }

 private:
  /// A derivative's mask disables some of its results; those are undefined on all ranks.
  bool is_unwanted(size_t index) const {
    return std::ranges::any_of(args_, [&](const c10::IValue& arg) {
      if (!arg.isBoolList()) return false;
      const auto mask = arg.toBoolList();
      return mask.size() == entry_.result_alias.size() && !mask[index];
    });
  }

  const OpEntry& entry_;
  const Decision& decision_;
  std::span<const c10::IValue> args_;
  at::Tensor like_;
};

}  // namespace

at::Tensor empty_view(const at::Tensor& base, const Sharding& as) {
  const at::Tensor view = at::empty({0}, options_of(base, as));
  return view.set_(base.storage(), 0, as_ints(as.local_shape()), as_ints(as.local_stride()));
}

void run_outside(const OpEntry& entry, const Decision& decision, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size()).vec();
  torch::jit::drop(stack, entry.args.size());
  const EmptyResults results(entry, decision, args);
  size_t result = 0;
  for (size_t r = 0; r < entry.result_alias.size(); ++r) {
    require(entry.result_is_tensor[r], entry.name, " on mesh ", decision.mesh,
            ", called on a rank outside it, which holds no value; call it on the mesh's ranks");
    if (entry.result_alias[r] >= 0) {
      stack.push_back(args[static_cast<size_t>(entry.result_alias[r])]);
      ++result;
    } else if (entry.result_is_list[r]) {
      c10::List<at::Tensor> list;
      while (result < decision.results.size()) list.push_back(results.make(result++));
      stack.emplace_back(std::move(list));
    } else {
      stack.emplace_back(results.make(result++));
    }
  }
}

}  // namespace tessera::dtensor
