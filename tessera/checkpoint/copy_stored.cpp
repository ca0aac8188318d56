#include "tessera/checkpoint/copy_stored.h"

#include <c10/core/GradMode.h>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/checkpoint/safetensors_files.h"
#include "tessera/checkpoint/stored/directory.h"
#include "tessera/checkpoint/stored/stored_box.h"
#include "tessera/checkpoint/stored/tensor_bytes.h"
#include "tessera/checkpoint/write_files.h"
#include "tessera/dcp/check.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

/// What is written of a stored state, and by which of some ranks.
struct CopyPlan {
  std::vector<PlannedEntry> entries;
  std::vector<const dcp::Entry*> stored;  // by entry
  std::vector<dcp::PlannedWrite> writes;
  uint64_t bytes = 0;

  StatePlan of_rank(int rank) const {
    StatePlan out{entries, {}};
    for (const auto& write : writes) {
      if (write.writer == rank) out.mine.push_back(write);
    }
    return out;
  }
  const dcp::TensorEntry& tensor(size_t entry) const {
    return std::get<dcp::TensorEntry>(*stored[entry]);
  }
};

/// Boxes of a tensor, with the ranks that may write each.
using Boxes =
    std::function<std::vector<dcp::HeldBox>(const PlannedEntry&, const dcp::TensorEntry&)>;

CopyPlan plan_copy(StoredState& stored, int ranks, const CopyOptions& options, const Boxes& boxes) {
  CopyPlan plan;
  std::vector<dcp::Offer> offers;
  std::vector<int> everyone;
  for (int rank = 0; rank < ranks; ++rank) everyone.push_back(rank);
  for (const auto& [name, entry] : stored.metadata().entries) {
    const auto* tensor = std::get_if<dcp::TensorEntry>(&entry);
    if (tensor == nullptr && options.tensors_only) continue;
    const size_t index = plan.entries.size();
    plan.stored.push_back(&entry);
    plan.entries.push_back({.name = name, .is_tensor = tensor != nullptr, .shape = {}});
    if (tensor == nullptr) {
      offers.push_back({index, {{}, everyone}, 0});
      continue;
    }
    dcp::check_chunks(name, *tensor, stored.path().string());
    PlannedEntry& planned = plan.entries.back();
    planned.dtype = dtype_of(stored, name, *tensor);
    planned.shape = tensor->shape;
    for (auto& held : boxes(planned, *tensor)) {
      const auto bytes = static_cast<uint64_t>(held.box.numel() * dtype_bytes(planned.dtype));
      if (bytes == 0) continue;
      plan.bytes += bytes;
      offers.push_back({index, std::move(held), bytes});
    }
  }
  plan.writes = dcp::plan_writes(std::move(offers), {.world_size = ranks, .split = false});
  return plan;
}

std::vector<dcp::HeldBox> chunks_as_stored(const PlannedEntry&, const dcp::TensorEntry& tensor) {
  std::vector<dcp::HeldBox> out;
  for (const auto& chunk : tensor.chunks) out.push_back({chunk.box, {0}});
  return out;
}

/// Calls `write`; what was written aside is removed if it throws.
template <typename Write>
void aside(const fs::path& path, const Write& write) {
  const c10::AutoGradMode no_grad(false);
  SavingDirectory saving(path);
  write(saving);
}

void write_checkpoint(StoredState& stored, const fs::path& directory, int ranks,
                      const CopyPlan& plan, const CopyOptions& options) {
  aside(directory, [&](SavingDirectory& saving) {
    uint64_t before = 0;
    at::Tensor buffer;
    std::vector<std::string> reports;
    for (int rank = 0; rank < ranks; ++rank) {
      const StatePlan mine = plan.of_rank(rank);
      std::vector<ItemContents> items;
      uint64_t bytes = 0;
      for (const auto& write : mine.mine) {
        const PlannedEntry& entry = plan.entries[write.entry];
        if (!entry.is_tensor) {
          const auto& value = std::get<dcp::ValueEntry>(*plan.stored[write.entry]);
          items.push_back({stored.read_value(entry.name, value)});
          continue;
        }
        items.push_back({[&stored, &plan, &entry, &write, &buffer](const auto& sink) {
                           visit_box_bytes(stored, entry.name, plan.tensor(write.entry),
                                           entry.dtype, write.box, buffer, sink);
                         },
                         static_cast<uint64_t>(write.box.numel() * dtype_bytes(entry.dtype))});
        bytes += items.back().bytes;
      }
      reports.push_back(
          write_items_file(mine, items, rank, saving.path(), [&](uint64_t done, uint64_t) {
            if (options.on_progress) options.on_progress(before + done, plan.bytes);
          }));
      before += bytes;
    }
    write_description(plan.of_rank(0), reports, stored.metadata().paths, saving.path());
    saving.commit();
  });
}

}  // namespace

void copy_as_checkpoint(StoredState& stored, const fs::path& directory,
                        const CopyOptions& options) {
  write_checkpoint(stored, directory, 1, plan_copy(stored, 1, options, chunks_as_stored), options);
}

void copy_resharded(StoredState& stored, const fs::path& directory, int ranks,
                    const CopyOptions& options) {
  require(ranks > 0, "a checkpoint of ", ranks, " ranks");
  const DeviceMesh mesh = DeviceMesh::parse(join_text("ranks=", ranks));
  const auto rows = [&](const PlannedEntry& entry, const dcp::TensorEntry& tensor) {
    return dcp::all_held_boxes(Sharding(mesh, {tensor.shape.empty() ? Replicate() : Shard(0)},
                                        tensor.shape, {.dtype = entry.dtype}));
  };
  write_checkpoint(stored, directory, ranks, plan_copy(stored, ranks, options, rows), options);
}

void copy_as_safetensors(StoredState& stored, const fs::path& path, const CopyOptions& options) {
  const CopyPlan plan = plan_copy(stored, 1, options, chunks_as_stored);
  const StatePlan all = plan.of_rank(0);
  const SafetensorsFiles files(all, path, {});
  aside(path, [&](SavingDirectory& saving) {
    files.create(saving.path());
    uint64_t done = 0;
    files.write(all, saving.path(), [&](size_t i, const at::Tensor& place) {
      const auto& write = all.mine[i];
      const PlannedEntry& entry = plan.entries[write.entry];
      for_each_piece(write.box, kBounce / dtype_bytes(entry.dtype), [&](const Box& piece) {
        at::Tensor target = place;
        for (size_t d = 0; d < piece.begin.size(); ++d) {
          target = target.narrow(static_cast<int64_t>(d), piece.begin[d] - write.box.begin[d],
                                 piece.end[d] - piece.begin[d]);
        }
        read_box_into(target, stored, entry.name, plan.tensor(write.entry), piece);
        done += static_cast<uint64_t>(target.nbytes());
        if (options.on_progress) options.on_progress(done, plan.bytes);
      });
    });
    files.commit(saving);
  });
}

}  // namespace tessera::checkpoint
