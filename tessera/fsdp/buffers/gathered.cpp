#include "tessera/fsdp/buffers/gathered.h"

#include <algorithm>

#include "tessera/fsdp/buffers/memory_views.h"
#include "tessera/observe/call_site.h"

namespace tessera::fsdp {
namespace {

/// Its bytes are counted while it lives.
struct CountedMemory {
  CountedMemory(at::Tensor held, std::shared_ptr<GatheredBytes> counter)
      : memory(std::move(held)), count(std::move(counter)) {
    const int64_t now = count->alive.fetch_add(memory.numel()) + memory.numel();
    int64_t peak = count->peak.load();
    while (peak < now && !count->peak.compare_exchange_weak(peak, now)) {
    }
  }
  ~CountedMemory() { count->alive.fetch_sub(memory.numel()); }
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  at::Tensor memory;
  std::shared_ptr<GatheredBytes> count;
};

at::DataPtr counted(const at::Tensor& memory, const std::shared_ptr<GatheredBytes>& count) {
  return {memory.data_ptr(), new CountedMemory(memory, count),
          [](void* held) { delete static_cast<CountedMemory*>(held); }, memory.device()};
}

/// Memory that shares, and keeps alive, the storage of `of`.
at::DataPtr lent(const at::Tensor& of) {
  return {of.data_ptr(), c10::Storage(of.storage()).unsafeReleaseStorageImpl(),
          [](void* held) {
            c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(held));
          },
          of.device()};
}

bool is_held_once(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.unsafeGetTensorImpl()->autograd_meta() == nullptr;
}

}  // namespace

/// Tensors created in inference mode have different dispatch keys.
bool Gathered::fits(const at::Tensor& memory) const {
  return views_ && views_->memory.key_set() == memory.key_set() &&
         views_->memory.device() == memory.device();
}

bool Gathered::is_only_holder() const {
  return views_->memory.storage().use_count() == 1 + views_->wholes.size() &&
         std::ranges::all_of(views_->wholes, is_held_once);
}

void Gathered::make_views(const at::Tensor& memory) {
  const at::Tensor own = storageless(memory);
  const at::Tensor lent = storageless(memory);
  views_ = Views{own, layout_->wholes_in(own), lent, layout_->slots_in(lent)};
}

void Gathered::attach(const at::Tensor& memory, const std::shared_ptr<GatheredBytes>& bytes) {
  if (!fits(memory)) make_views(memory);
  attach_storage(views_->memory, counted(memory, bytes));
  attach_storage(views_->lent, lent(views_->memory));
}

/// One call for all pieces: a device copies them by one kernel.
void Gathered::copy(const std::vector<std::vector<at::Tensor>>& pieces, c10::Device device,
                    const Collectives& collectives, const std::shared_ptr<GatheredBytes>& bytes) {
  attach(collectives.allocate(layout_->gathered_bytes(), device), bytes);
  Tensors to;
  Tensors from;
  for (size_t s = 0; s < pieces.size(); ++s) {
    int64_t begin = 0;
    for (const at::Tensor& piece : pieces[s]) {
      to.push_back(part_of(views_->slots[s], begin, piece.sizes()));
      from.push_back(piece);
      begin += piece.numel();
    }
  }
  copy_pieces(to, from);
  detach_storage(views_->lent);
  stage_ = Stage::there;
}

void Gathered::start(std::vector<at::Tensor> sent, const GatherContext& way, bool async) {
  attach(way.collectives.allocate(layout_->gathered_bytes(), sent[0].device()), way.bytes);
  sent_ = std::move(sent);
  message_ = way.message;
  const comm::CallSite site({.op = kSite, .axis = way.axis});
  try {
    work_ = way.collectives.all_gather(views_->slots, sent_, way.group, async);
  } catch (...) {
    fail();
    throw;
  }
  message_.note(StepLog::When::starts);
  stage_ = Stage::under_way;
}

/// Messages that are still in flight keep the memory for themselves.
void Gathered::fail() {
  views_.reset();
  sent_.clear();
  work_.reset();
  stage_ = Stage::released;
}

void Gathered::wait() {
  if (stage_ != Stage::under_way) return;
  message_.note(StepLog::When::awaited);
  try {
    if (work_ != nullptr) work_->wait();
  } catch (...) {
    fail();
    throw;
  }
  message_.note(StepLog::When::ends);
  work_.reset();
  copy_out();
  detach_storage(views_->lent);
  sent_.clear();
  stage_ = Stage::there;
}

void Gathered::copy_out() {
  Tensors from;
  Tensors to;
  for (size_t i = 0; i < layout_->params(); ++i) {
    if (layout_->is_in_slot(i)) continue;
    const at::Tensor& slot = views_->slots[layout_->slot_of(i)];
    if (slot.is_cpu()) {
      layout_->copy_out(i, slot, views_->wholes[i]);
    } else {
      layout_->append_pieces(i, slot, views_->wholes[i], from, to);
    }
  }
  copy_pieces(to, from);
}

void Gathered::release() {
  wait();
  if (stage_ == Stage::released) return;
  stage_ = Stage::released;
  if (is_only_holder()) {
    detach_storage(views_->memory);
  } else {
    views_.reset();
  }
}

std::vector<at::Tensor> Gathered::parts_of_slots(
    int part, int parts, const Collectives& collectives,
    const std::shared_ptr<GatheredBytes>& bytes) const {
  std::vector<at::Tensor> out;
  for (const at::Tensor& slot : layout_->slots_in(views_->memory)) {
    const int64_t length = slot.numel() / parts;
    const at::Tensor of = slot.narrow(0, part * length, length);
    const at::Tensor room = collectives.allocate(static_cast<int64_t>(of.nbytes()), of.device());
    const at::Tensor copy = storageless(room);
    attach_storage(copy, counted(room, bytes));
    out.push_back(placed(copy, 0, of.sizes(), of.scalar_type()));
    out.back().copy_(of);
  }
  return out;
}

}  // namespace tessera::fsdp
