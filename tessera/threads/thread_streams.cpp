#include "tessera/threads/thread_streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace tessera::comm {
namespace {

bool has_streams(c10::Device device) { return !device.is_cpu() && !device.is_meta(); }

template <typename F>
void for_each_on_accelerator(const Call& call, const F& f) {
  const at::Tensor* lead = call.lead();
  if (lead == nullptr || !has_streams(lead->device())) return;  // one call, one device type
  for (const auto* row : {&call.inputs, &call.outputs}) {
    for (const auto& t : *row) f(t);
  }
}

}  // namespace

void StreamMarks::mark(c10::Device device) {
  const bool marked = std::any_of(events_.begin(), events_.end(),
                                  [&](const c10::Event& e) { return e.device() == device; });
  if (marked) return;
  events_.emplace_back(device.type());
  events_.back().record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void StreamMarks::mark(const Call& call) {
  for_each_on_accelerator(call, [&](const at::Tensor& t) { mark(t.device()); });
}

void StreamMarks::block_current_streams() const {
  for (const auto& event : events_) {
    const c10::Device device = event.device();
    event.block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

TransferStreams::~TransferStreams() {
  for (const c10::Stream& stream : left_) {
    c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
  }
}

void TransferStreams::enter(c10::Device device) {
  const bool entered = std::any_of(left_.begin(), left_.end(),
                                   [&](const c10::Stream& s) { return s.device() == device; });
  if (entered) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  left_.push_back(
      guard.exchangeStream(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true)));
}

void TransferStreams::enter(const Call& call) {
  for_each_on_accelerator(call, [&](const at::Tensor& t) { enter(t.device()); });
}

void record_use(const Call& call) {
  for_each_on_accelerator(call, [](const at::Tensor& t) {
    if (!t.unsafeGetTensorImpl()->has_storage()) return;  // sparse
    const c10::impl::VirtualGuardImpl guard(t.device().type());
    guard.recordDataPtrOnStream(t.storage().data_ptr(), guard.getStream(t.device()));
  });
}

}  // namespace tessera::comm
