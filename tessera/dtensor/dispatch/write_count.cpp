#include "tessera/dtensor/dispatch/write_count.h"

namespace tessera::dtensor {
namespace {

/// Inserted between a storage and its memory.
struct WatchedMemory {
  at::DataPtr memory;
  c10::VariableVersion version;
};

void release_watched(void* watched) { delete static_cast<WatchedMemory*>(watched); }

}  // namespace

void count_writes_to_memory(const at::Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  void* data = storage.mutable_data_ptr().get();
  auto* watched = new WatchedMemory{{}, tensor.unsafeGetTensorImpl()->version_counter()};
  watched->memory =
      storage.set_data_ptr(at::DataPtr(data, watched, release_watched, storage.device()));
}

void count_write_to_memory(const at::Tensor& local) {
  if (!local.has_storage()) return;
  const at::DataPtr& data = local.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (auto* watched = data.cast_context<WatchedMemory>(release_watched)) watched->version.bump();
}

CountedWrites::CountedWrites(const OpEntry& entry, const torch::jit::Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  const auto add = [&](const at::Tensor& written) {
    const ShardedMeta* meta = sharded_meta(written);
    if (meta == nullptr || !meta->local().defined()) return;
    locals_.push_back(meta->local());
    count_write(meta->local());
  };
  for (const int index : entry.written) {
    const c10::IValue& value = stack[base + static_cast<size_t>(index)];
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (!item.isTensor()) continue;
        add(item.toTensor());
        count_write_of_item(entry, item.toTensor());
      }
    }
  }
  for (const HiddenArg& hidden : entry.hidden) {
    const c10::IValue& value = stack[base + static_cast<size_t>(hidden.argument)];
    if (hidden.flag >= 0 && !stack[base + static_cast<size_t>(hidden.flag)].toBool()) continue;
    if (value.isTensor()) add(value.toTensor());
  }
}

CountedWrites::~CountedWrites() {
  for (const at::Tensor& local : locals_) count_write(local);
}

}  // namespace tessera::dtensor
