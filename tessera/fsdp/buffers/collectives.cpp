#include "tessera/fsdp/buffers/collectives.h"

#include <ATen/ops/empty.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/collective/block_pool.h"

namespace tessera {

WorkPtr default_all_gather(Tensors& outputs, Tensors& inputs, const comm::Group& group,
                           bool async) {
  auto& backend = group.backend(inputs[0].device().type());
  c10d::AllgatherOptions options;
  options.asyncOp = async;
  return inputs.size() == 1 ? backend._allgather_base(outputs[0], inputs[0], options)
                            : backend.allgather_into_tensor_coalesced(outputs, inputs, options);
}

WorkPtr default_reduce_scatter(Tensors& outputs, Tensors& inputs, const comm::Group& group,
                               bool async) {
  auto& backend = group.backend(inputs[0].device().type());
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d::ReduceOp::SUM;
  options.asyncOp = async;
  return inputs.size() == 1 ? backend._reduce_scatter_base(outputs[0], inputs[0], options)
                            : backend.reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkPtr default_all_reduce(Tensors& tensors, const comm::Group* replicas, bool async) {
  if (replicas == nullptr || tensors.empty()) return nullptr;
  auto& backend = replicas->backend(tensors[0].device().type());
  c10d::AllreduceCoalescedOptions options;
  options.asyncOp = async;
  return tensors.size() == 1 ? backend.allreduce(tensors, options)
                             : backend.allreduce_coalesced(tensors, options);
}

at::Tensor default_allocate(int64_t bytes, c10::Device device) {
  if (device.is_cpu()) return comm::pooled_empty({bytes}, at::kByte);
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
}

}  // namespace tessera

namespace tessera::fsdp {

std::shared_ptr<const Collectives> with_defaults(const Collectives& given) {
  static const auto ours = std::make_shared<const Collectives>(Collectives{
      default_all_gather, default_reduce_scatter, default_all_reduce, default_allocate});
  if (!given.all_gather && !given.reduce_scatter && !given.all_reduce && !given.allocate) {
    return ours;
  }
  Collectives out = given;
  if (!out.all_gather) out.all_gather = ours->all_gather;
  if (!out.reduce_scatter) out.reduce_scatter = ours->reduce_scatter;
  if (!out.all_reduce) out.all_reduce = ours->all_reduce;
  if (!out.allocate) out.allocate = ours->allocate;
  return std::make_shared<const Collectives>(std::move(out));
}

}  // namespace tessera::fsdp
