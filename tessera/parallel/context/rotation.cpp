#include "tessera/parallel/context/rotation.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/exec/buffers.h"
#include "tessera/exec/wire.h"
#include "tessera/observe/call_site.h"

namespace tessera::parallel {

at::Tensor Rotating::wait() {
  if (work_) work_->wait();
  work_.reset();
  sent_.reset();
  return std::move(received_);
}

Ring::Ring(std::shared_ptr<const comm::Group> group, std::string axis, std::string_view site)
    : group_(std::move(group)), axis_(std::move(axis)), site_(site) {}

Rotating Ring::start(const at::Tensor& buffer, int64_t numel) const {
  Rotating out;
  out.sent_ = buffer;
  if (size() == 1) {
    out.received_ = buffer;
    return out;
  }
  out.received_ = exec::empty_like_device(buffer, {numel}, buffer.scalar_type());
  const int64_t scale = exec::movable_scale(buffer.scalar_type());
  std::vector<int64_t> send(static_cast<size_t>(size()), 0);
  std::vector<int64_t> receive(static_cast<size_t>(size()), 0);
  send[static_cast<size_t>((index() + 1) % size())] = buffer.numel() * scale;
  receive[static_cast<size_t>((index() + size() - 1) % size())] = numel * scale;
  at::Tensor from = exec::as_movable(buffer);
  at::Tensor to = exec::as_movable(out.received_);
  c10d::AllToAllOptions options;
  options.asyncOp = true;
  const comm::CallSite site({.op = site_, .axis = axis_});
  out.work_ =
      group_->backend(buffer.device().type()).alltoall_base(to, from, receive, send, options);
  return out;
}

}  // namespace tessera::parallel
