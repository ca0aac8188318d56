#include "tessera/fsdp/gathered.h"

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

int64_t version_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.unsafeGetTensorImpl()->version_counter().current_version());
}

}  // namespace

Gathered::Gathered(const FlatLayout& layout, const DataMesh& mesh, const Collectives& collectives,
                   std::vector<at::Tensor> pieces, const std::shared_ptr<GatheredBytes>& bytes,
                   bool async)
    : pieces_(std::move(pieces)) {
  const c10::Device device = pieces_[0].device();
  memory_ = counted(collectives.allocate(layout.gathered_bytes(), device), bytes);
  slots_ = layout.slots_in(memory_);
  wholes_ = layout.wholes_in(memory_);
  for (size_t s = 0; s < pieces_.size(); ++s) {
    versions_.push_back(version_of(pieces_[s]));
    sent_.push_back(pieces_[s].to(layout.slots()[s].dtype));
  }
  const comm::CallSite site({.op = "fully_shard", .axis = mesh.shard_name()});
  work_ = collectives.all_gather(slots_, sent_, *mesh.shard_group(), async);
}

void Gathered::wait(const FlatLayout& layout) {
  if (work_ != nullptr) work_->wait();
  work_.reset();
  if (copied_out_) return;
  copied_out_ = true;
  for (size_t i = 0; i < layout.params(); ++i) {
    const size_t slot = layout.slot_of(i);
    if (!layout.slots()[slot].direct) layout.copy_out(i, slots_[slot], wholes_[i]);
  }
  slots_.clear();
  sent_.clear();
}

bool Gathered::is_current() const {
  for (size_t s = 0; s < pieces_.size(); ++s) {
    if (version_of(pieces_[s]) != versions_[s]) return false;
  }
  return true;
}

}  // namespace tessera::fsdp
