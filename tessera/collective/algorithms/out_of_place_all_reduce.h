#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace tessera::comm {

/// A backend that can reduce into another tensor. c10d's all_reduce overwrites its input, so a
/// caller that still needs it must copy it first.
class OutOfPlaceAllReduce {
 public:
  virtual ~OutOfPlaceAllReduce() = default;

  /// `output` and `input` have the same shape and dtype; `input` is only read. To other ranks it is
  /// an ordinary all_reduce.
  virtual c10::intrusive_ptr<c10d::Work> all_reduce_into(at::Tensor& output, at::Tensor& input,
                                                         const c10d::AllreduceOptions& options) = 0;
};

/// The same on any backend, with a copy if necessary.
inline c10::intrusive_ptr<c10d::Work> all_reduce_into(c10d::Backend& backend, at::Tensor& output,
                                                      at::Tensor& input,
                                                      const c10d::AllreduceOptions& options) {
  if (auto* able = dynamic_cast<OutOfPlaceAllReduce*>(&backend)) {
    return able->all_reduce_into(output, input, options);
  }
  output.copy_(input);
  std::vector<at::Tensor> tensors = {output};
  return backend.allreduce(tensors, options);
}

}  // namespace tessera::comm
