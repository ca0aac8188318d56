#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <functional>
#include <vector>

/// The live views of a sharded tensor that autograd may take again from it (view_replay.h). Their
/// functions refer to the shape that their base had when they were taken. transpose_ and similar
/// ops change that shape, so they insert a first step that restores it:
///
///   v = y.narrow(1, 0, 2)      the function of v: narrow(1, 0, 2) of y
///   y.transpose_(0, 1)         from here on:      narrow(1, 0, 2) of y.transpose(0, 1)
///   y.mul_(w)                  the gradient of v is taken from the right elements
///
/// Views of plain tensors need none of this: libtorch takes them again by their strides.
namespace tessera::dtensor {

/// Adds `view` to the views of its base if autograd may take it again. To be called at the end of
/// its autograd kernel; takes a tenth of the time of recording the function.
void record_view(const at::Tensor& view);
void record_view(const std::vector<at::Tensor>& views);
void record_view(const c10::IValue& result);

/// Restores the shape that a tensor had before an in-place op.
using RestoreShape = std::function<at::Tensor(const at::Tensor&)>;

/// Inserts `restore` into the functions of all recorded views of `base`, which has changed its
/// shape.
void restore_for_views(const at::Tensor& base, const RestoreShape& restore);

}  // namespace tessera::dtensor
