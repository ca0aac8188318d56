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

int64_t version_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.unsafeGetTensorImpl()->version_counter().current_version());
}

}  // namespace

Gathered::Gathered(std::shared_ptr<const FlatLayout> layout, const DataMesh& mesh,
                   const Collectives& collectives,
                   const std::vector<std::vector<at::Tensor>>& pieces,
                   const std::shared_ptr<GatheredBytes>& bytes, bool async)
    : layout_(std::move(layout)) {
  const c10::Device device = pieces[0][0].device();
  memory_ = counted(collectives.allocate(layout_->gathered_bytes(), device), bytes);
  for (const at::Tensor& slot : layout_->slots_in(memory_)) slots_.push_back(lent(slot));
  wholes_ = layout_->wholes_in(memory_);
  for (size_t s = 0; s < pieces.size(); ++s) {
    for (const at::Tensor& piece : pieces[s]) {
      pieces_.push_back(piece);
      versions_.push_back(version_of(piece));
    }
    const at::Tensor piece = pieces[s].size() == 1 ? pieces[s][0] : at::cat(pieces[s]);
    sent_.push_back(piece.to(layout_->slots()[s].dtype));
  }
  const comm::CallSite site({.op = "fully_shard", .axis = mesh.shard_name()});
  work_ = collectives.all_gather(slots_, sent_, *mesh.shard_group(), async);
}

void Gathered::wait() {
  if (work_ != nullptr) work_->wait();
  work_.reset();
  if (std::exchange(copied_out_, true)) return;
  for (size_t i = 0; i < layout_->params(); ++i) {
    const size_t slot = layout_->slot_of(i);
    if (!layout_->slots()[slot].direct) layout_->copy_out(i, slots_[slot], wholes_[i]);
  }
  for (const at::Tensor& slot : slots_) take_back(slot);
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
