#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "tessera/dcp/metadata.h"
#include "tessera/files/pickle/plain_value.h"

/// A state on disk, whatever its format: names, shapes and chunks, and the elements of each chunk.
namespace tessera::checkpoint {

class StoredState {
 public:
  struct Options {
    bool verify = true;  ///< bytes are checked against their checksums when they are read
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
  /// The same for all who have opened the same save; "" where the format does not tell.
  virtual std::string digest() const = 0;
  /// Whether damage of any byte is found.
  virtual bool has_checksums() const = 0;

  /// The elements of `part`, a box inside the chunk, as a tensor over the mapped file; it keeps the
  /// file mapped. Not aligned where the file is not: see copy_elements.
  virtual at::Tensor read(const std::string& name, const dcp::Chunk& chunk, const Box& part) = 0;
  /// Starts to read what read() will, and does not wait for it.
  virtual void prefetch(const std::string& name, const dcp::Chunk& chunk, const Box& part) = 0;
  virtual files::PlainValue read_value(const std::string& name, const dcp::ValueEntry& entry) = 0;
  /// Reads every byte that has a checksum; throws InvalidArgument for the first that is damaged.
  /// `on_progress` may be empty: bytes that have been read, of all.
  using OnProgress = std::function<void(uint64_t bytes, uint64_t total)>;
  virtual void verify_all(const OnProgress& on_progress) = 0;
};

/// Opens what is at `path`: a directory with .metadata; a .safetensors file; a directory with a
/// model.safetensors.index.json, or with .safetensors files. Throws InvalidArgument for anything
/// else.
std::unique_ptr<StoredState> open_stored(const std::filesystem::path& path,
                                         StoredState::Options options);

/// Writes the elements of `source`, as StoredState gives them, into `target`, converting them.
void copy_elements(const at::Tensor& target, const at::Tensor& source);
/// The same for large tensors that are read once: at most about 16 MiB of the mapped file are in
/// the memory of this process at a time.
void copy_and_release(const at::Tensor& target, const at::Tensor& source);

}  // namespace tessera::checkpoint
