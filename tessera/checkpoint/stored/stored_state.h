#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "tessera/checkpoint/stored/elements.h"
#include "tessera/dcp/metadata.h"
#include "tessera/files/pickle/plain_value.h"

/// A state on disk, whatever its format: names, shapes and chunks, and the elements of each chunk.
namespace tessera::checkpoint {

class StoredState {
 public:
  struct Options {
    bool verify = true;  ///< bytes are checked against their checksums when they are read
    /// Whose copy is read of what several ranks saved, in directories that each rank described on
    /// its own (dcp/rank_metadata.h).
    int rank = 0;
  };

  virtual ~StoredState() = default;

  /// What is stored; the chunks' items are the format's own matter.
  virtual const dcp::Metadata& metadata() const = 0;
  /// Names it in messages.
  virtual const std::filesystem::path& path() const = 0;
  /// The file that says which names and chunks there are.
  virtual std::filesystem::path description() const = 0;
  /// "PyTorch distributed checkpoint", "safetensors".
  virtual std::string format() const = 0;
  /// Equal for all readers of one save; "" if the format has nothing to identify it by.
  virtual std::string digest() const = 0;
  /// Whether damage of any byte would be found.
  virtual bool has_checksums() const = 0;

  /// Where the elements of `part` are, a box inside the chunk, after they have been verified; the
  /// file stays open as long as the result.
  virtual StoredElements find(const std::string& name, const dcp::Chunk& chunk,
                              const Box& part) = 0;
  virtual files::PlainValue read_value(const std::string& name, const dcp::ValueEntry& entry) = 0;
  /// Reads every byte that has a checksum; throws InvalidArgument for the first that is damaged.
  /// `on_progress` may be empty: bytes that have been read, of all.
  using OnProgress = std::function<void(uint64_t bytes, uint64_t total)>;
  virtual void verify_all(const OnProgress& on_progress) = 0;
};

/// Opens what is at `path`: a directory with .metadata, or with one of each rank; a .safetensors
/// file; a directory with a model.safetensors.index.json, or with .safetensors files. Throws
/// InvalidArgument for anything else.
std::unique_ptr<StoredState> open_stored(const std::filesystem::path& path,
                                         StoredState::Options options);

}  // namespace tessera::checkpoint
