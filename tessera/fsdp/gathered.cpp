#include "tessera/fsdp/gathered.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>

#include "tessera/comm/call_site.h"

namespace tessera::fsdp {
namespace {

at::Tensor counted(const at::Tensor& held, const std::shared_ptr<GatheredBytes>& count) {
  const int64_t bytes = held.numel();
  const int64_t now = count->alive.fetch_add(bytes) + bytes;
  int64_t peak = count->peak.load();
  while (peak < now && !count->peak.compare_exchange_weak(peak, now)) {
  }
  const auto freed = [held, count, bytes](void*) { count->alive.fetch_sub(bytes); };
  return at::from_blob(held.data_ptr(), {bytes}, freed, held.options());
}

/// The same memory under a handle of its own, which can be made to let go of it.
at::Tensor lent(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), [tensor](void*) {}, tensor.options());
}

/// Whoever ran the message may hold the handle a moment longer than the message ran.
void take_back(const at::Tensor& lent) {
  lent.storage().set_data_ptr(at::DataPtr(nullptr, lent.device()));
  lent.storage().unsafeGetStorageImpl()->set_nbytes(0);
}

}  // namespace

Gathered::Gathered(std::shared_ptr<const FlatLayout> layout, std::vector<at::Tensor> sent,
                   GatherWay way, bool async)
    : layout_(std::move(layout)), sent_(std::move(sent)), times_(std::move(way.times)) {
  const int64_t bytes = layout_->gathered_bytes();
  memory_ = counted(way.collectives.allocate(bytes, sent_[0].device()), way.bytes);
  for (const at::Tensor& slot : layout_->slots_in(memory_)) slots_.push_back(lent(slot));
  wholes_ = layout_->wholes_in(memory_);
  const comm::CallSite site({.op = "fully_shard", .axis = way.axis});
  work_ = way.collectives.all_gather(slots_, sent_, way.group, async);
  times_.issued();
}

void Gathered::wait() {
  if (std::exchange(there_, true)) return;
  times_.awaited();
  if (work_ != nullptr) work_->wait();
  times_.ended();
  work_.reset();
  for (size_t i = 0; i < layout_->params(); ++i) {
    const size_t slot = layout_->slot_of(i);
    if (!layout_->slots()[slot].direct) layout_->copy_out(i, slots_[slot], wholes_[i]);
  }
  for (const at::Tensor& slot : slots_) take_back(slot);
  slots_.clear();
  sent_.clear();
}

std::vector<at::Tensor> Gathered::parts_of_slots(
    int part, int parts, const Collectives& collectives,
    const std::shared_ptr<GatheredBytes>& bytes) const {
  std::vector<at::Tensor> out;
  for (const at::Tensor& slot : layout_->slots_in(memory_)) {
    const int64_t length = slot.numel() / parts;
    const at::Tensor of = slot.narrow(0, part * length, length);
    const auto room = static_cast<int64_t>(of.nbytes());
    out.push_back(counted(collectives.allocate(room, of.device()), bytes).view(of.scalar_type()));
    out.back().copy_(of);
  }
  return out;
}

}  // namespace tessera::fsdp
