#include "tessera/partition/shard_weights.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/partition/graph/sizes.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::partition {
namespace {

using program::Archive;
using program::ExportedProgram;
using program::Payload;
using program::RecordContents;
using program::TensorMeta;
using Sink = std::function<void(std::span<const std::byte>)>;
using Bytes = std::span<const std::byte>;

constexpr size_t kBuffer = size_t{1} << 20;
/// Shorter stretches are copied from the mapping: a system call for each would cost more.
constexpr size_t kWorthACall = 512;

/// Collects stretches of the archive in a buffer for the sink.
class Collector {
 public:
  Collector(const Archive& archive, const Sink& sink, const ByteProgress& progress)
      : file_(*archive.zip().file()),
        sink_(sink),
        progress_(progress),
        buffer_(std::make_unique_for_overwrite<std::byte[]>(kBuffer)) {}

  void add(Bytes bytes) {
    while (!bytes.empty()) {
      if (filled_ == kBuffer) flush();
      const Bytes part = bytes.first(std::min(bytes.size(), kBuffer - filled_));
      if (part.size() >= kWorthACall) {
        file_.read(part, buffer_.get() + filled_);
      } else {
        std::memcpy(buffer_.get() + filled_, part.data(), part.size());
      }
      filled_ += part.size();
      bytes = bytes.subspan(part.size());
    }
  }

  void flush() {
    if (filled_ == 0) return;
    sink_({buffer_.get(), filled_});
    if (progress_) progress_(filled_);
    filled_ = 0;
  }

 private:
  const files::MappedFile& file_;
  const Sink& sink_;
  const ByteProgress& progress_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t filled_ = 0;
};

/// What a rank holds of one dim of a stored tensor.
struct StoredDim {
  int64_t size = 0;
  int64_t stride = 0;
  std::vector<Interval> held;
};

/// The dims of a tensor from the outermost in memory to the innermost.
std::vector<StoredDim> dims_in_memory_order(const TensorMeta& meta, const Sharding& sharding) {
  std::vector<StoredDim> out;
  const auto& coordinate = sharding.mesh().my_coordinate().value();
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    StoredDim dim{meta.sizes[d].number(), meta.strides[d].number(),
                  held_intervals(sharding, static_cast<int>(d), coordinate)};
    if (dim.stride == 0 && dim.size > 0) dim = {1, 0, {{0, 1}}};  // expanded: stored once
    out.push_back(std::move(dim));
  }
  std::ranges::stable_sort(out, std::ranges::greater(), &StoredDim::stride);
  return out;
}

/// Walks the elements that a rank holds, in the order of its local tensor.
class ShardReader {
 public:
  ShardReader(std::vector<StoredDim> dims, Bytes storage, int64_t element_bytes)
      : dims_(std::move(dims)), storage_(storage), element_bytes_(element_bytes) {
    // The innermost dims that are whole and dense are read as one stretch with the dim around.
    inner_ = dims_.size();
    int64_t dense = 1;
    while (inner_ > 0) {
      const StoredDim& dim = dims_[inner_ - 1];
      if (dim.stride != dense && dim.size != 1) break;
      --inner_;
      stretch_ = dense;
      dense *= dim.size;
      const bool whole = dim.held.size() == 1 && dim.held[0].size() == dim.size;
      if (!whole) break;
    }
    if (inner_ == dims_.size()) stretch_ = 1;
  }

  int64_t numel() const {
    int64_t n = 1;
    for (const auto& dim : dims_) {
      int64_t held = 0;
      for (const auto& interval : dim.held) held += interval.size();
      n *= held;
    }
    return n;
  }

  void read(Collector& out, int64_t offset) const {
    if (numel() > 0) read_dim(out, 0, offset);
  }

 private:
  void read_dim(Collector& out, size_t dim, int64_t offset) const {
    if (dim == dims_.size()) return add(out, offset, 1);
    for (const Interval& held : dims_[dim].held) {
      if (dim == inner_) {
        add(out, offset + held.begin * stretch_, held.size() * stretch_);
        continue;
      }
      for (int64_t i = held.begin; i < held.end; ++i) {
        read_dim(out, dim + 1, offset + i * dims_[dim].stride);
      }
    }
  }

  void add(Collector& out, int64_t first, int64_t count) const {
    out.add(storage_.subspan(static_cast<size_t>(first * element_bytes_),
                             static_cast<size_t>(count * element_bytes_)));
  }

  std::vector<StoredDim> dims_;
  Bytes storage_;
  int64_t element_bytes_;
  size_t inner_ = 0;     // from this dim on, elements are one stretch
  int64_t stretch_ = 1;  // elements of one index of dim `inner_`
};

RecordContents whole_record(const Archive& archive, Bytes bytes, const ByteProgress& progress) {
  return {bytes.size(), [&archive, bytes, progress](const Sink& sink) {
            Collector out(archive, sink, progress);
            out.add(bytes);
            out.flush();
          }};
}

RecordContents sharded_record(const Archive& archive, const TensorMeta& meta,
                              const Sharding& sharding, Bytes storage,
                              const ByteProgress& progress) {
  const int64_t element = dtype_bytes(meta.dtype);
  auto reader =
      std::make_shared<ShardReader>(dims_in_memory_order(meta, sharding), storage, element);
  const int64_t offset = meta.storage_offset.number();
  return {static_cast<uint64_t>(reader->numel() * element),
          [&archive, reader, offset, progress](const Sink& sink) {
            Collector out(archive, sink, progress);
            reader->read(out, offset);
            out.flush();
          }};
}

/// The records of one folder, "data/weights/" or "data/constants/".
class Folder {
 public:
  Folder(std::string prefix, RecordNames::Folder& names, program::SaveOptions& out)
      : prefix_(std::move(prefix)), names_(names), out_(out) {}

  void keep(const Payload& payload) { names_.taken.insert(payload.path_name); }

  void add_whole(const Archive& archive, const Payload& payload, Bytes bytes,
                 const ByteProgress& progress) {
    out_.replace.try_emplace(prefix_ + payload.path_name, whole_record(archive, bytes, progress));
  }

  void add_sharded(const Archive& archive, Payload& payload, const Payload& before,
                   const Sharding& sharding, Bytes storage, const ByteProgress& progress) {
    const std::vector<std::string> key = {before.path_name, before.meta->to_text(),
                                          layout_text(*before.meta), part_text(sharding)};
    auto [known, added] = names_.sharded.emplace(key, before.path_name);
    if (added) {
      for (int i = 1; !names_.taken.insert(known->second).second; ++i) {
        known->second = join_text(before.path_name, "_part", i);
      }
      out_.replace.emplace(prefix_ + known->second,
                           sharded_record(archive, *before.meta, sharding, storage, progress));
    }
    payload.path_name = known->second;
  }

 private:
  static std::string layout_text(const TensorMeta& meta) {
    std::string out = meta.storage_offset.to_text();
    for (const auto& stride : meta.strides) out += "," + stride.to_text();
    return out;
  }

  /// What this rank holds of each dim: "0-8 4-8".
  static std::string part_text(const Sharding& sharding) {
    std::string out;
    const auto& coordinate = sharding.mesh().my_coordinate().value();
    for (int d = 0; d < sharding.ndim(); ++d) {
      for (const Interval& held : held_intervals(sharding, d, coordinate)) {
        out += join_text(held.begin, "-", held.end, ",");
      }
      out += " ";
    }
    return out;
  }

  std::string prefix_;
  RecordNames::Folder& names_;
  program::SaveOptions& out_;
};

}  // namespace

program::SaveOptions shard_weights(ExportedProgram& local, const ExportedProgram& program,
                                   const Archive& archive, const Assignment& assignment,
                                   const DeviceMesh& mesh, const ByteProgress& progress,
                                   RecordNames& names) {
  program::SaveOptions out;
  const auto shard = [&](std::vector<Payload>& mine, const std::vector<Payload>& all,
                         std::string prefix, RecordNames::Folder& taken, const auto& bytes_of) {
    Folder folder(std::move(prefix), taken, out);
    const auto sharding_of = [&](const Payload& payload) -> Sharding {
      const bool is_tensor = payload.meta && !payload.use_pickle;
      const auto found = sharding_of_weight(program, assignment, payload.name);
      return is_tensor && found ? seen_in(*found, mesh) : Sharding();
    };
    // Records that are kept whole keep their names.
    for (const Payload& payload : all) {
      if (!is_sharded(sharding_of(payload))) folder.keep(payload);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      const Sharding sharding = sharding_of(all[i]);
      const Bytes bytes = bytes_of(all[i]);
      if (is_sharded(sharding)) {
        folder.add_sharded(archive, mine[i], all[i], sharding, bytes, progress);
      } else {
        folder.add_whole(archive, all[i], bytes, progress);
      }
    }
  };
  shard(local.weights, program.weights, "data/weights/", names.weights,
        [&](const Payload& p) { return archive.bytes_of_weight(p); });
  shard(local.constants, program.constants, "data/constants/", names.constants,
        [&](const Payload& p) { return archive.bytes_of_constant(p); });
  return out;
}

}  // namespace tessera::partition
