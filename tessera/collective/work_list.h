#pragma once

#include <ATen/core/ivalue.h>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace tessera::comm {

/// Several works as one: the result of endCoalescing.
c10::intrusive_ptr<c10d::Work> all_of(std::vector<c10::intrusive_ptr<c10d::Work>> works);

/// A completed work.
c10::intrusive_ptr<c10d::Work> done_work(c10d::OpType op, std::vector<at::Tensor> outputs);
bool is_done_work(const c10d::Work& work);

/// A future of List[Tensor] that knows the accelerators of its value.
c10::intrusive_ptr<c10::ivalue::Future> make_tensor_list_future(
    const std::vector<at::Tensor>& value);

}  // namespace tessera::comm
