#include <ATen/core/dispatch/Dispatcher.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/register.h"
#include "tessera/dtensor/ops/install.h"

/// t_, transpose_ and similar ops change a tensor's shape in place. Takes the equivalent view, and
/// makes the tensor become it.
namespace tessera::dtensor {
namespace {

struct InPlaceView {
  const char* op;
  const char* view;
  const char* overload;
};

constexpr std::array<InPlaceView, 6> kViews = {{{"aten::t_", "aten::t", ""},
                                                {"aten::transpose_", "aten::transpose", "int"},
                                                {"aten::unsqueeze_", "aten::unsqueeze", ""},
                                                {"aten::squeeze_", "aten::squeeze", ""},
                                                {"aten::squeeze_.dim", "aten::squeeze", "dim"},
                                                {"aten::squeeze_.dims", "aten::squeeze", "dims"}}};

bool become_view(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor self = stack[stack.size() - entry.args.size()].toTensor();
  const auto view = std::ranges::find(kViews, entry.name, &InPlaceView::op);
  c10::Dispatcher::singleton().findSchemaOrThrow(view->view, view->overload).callBoxed(&stack);
  const at::Tensor result = torch::jit::pop(stack).toTensor();
  const ShardedMeta* meta = sharded_meta(result);
  require(!meta->is_copy_of_view(), entry.name, " of ", sharded_meta(self)->sharding(),
          " would have to gather it; redistribute it first, or use the form that returns a view");
  become(self, meta->local(), meta->sharding());
  torch::jit::push(stack, self);
  return true;
}

/// A sharded tensor cannot grow, because its memory is distributed.
bool resize(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor self = args[0].toTensor();
  const std::vector<int64_t> shape = args[1].toIntVector();
  require(self.sizes().equals(shape), entry.name, " of ", sharded_meta(self)->sharding(), " to ",
          shape_text(shape), ": a sharded tensor cannot be resized in place; make a new one");
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, self);
  return true;
}

}  // namespace

void install_in_place_views() {
  for (const auto& view : kViews) set_decomposition(view.op, become_view);
  set_decomposition("aten::resize_", resize);
}

}  // namespace tessera::dtensor
