#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/files/zip_reader.h"
#include "tessera/program/exported_program.h"

namespace tessera::program {

/// A `.pt2` file: a zip archive whose records are below one directory.
///
///   data/weights/weight_N, data/constants/tensor_N     the bytes of tensors
///   data/weights/model_weights_config.json, ...        names, types and records of tensors
///   models/model.json                                  the program
///   data/sample_inputs/model.pt                        a pickle of the inputs of the export
///
/// An archive may hold several programs: `model` in these names is then the name of each, and all
/// share the records of tensors.
///
/// Tensors are read from the mapped file in place; nothing is copied.
class TESSERA_API Archive {
 public:
  /// Throws InvalidArgument for a file that is not an exported program.
  static std::shared_ptr<const Archive> open(const std::filesystem::path& path);

  /// The program of this name; torch.export.save calls its only one "model".
  ExportedProgram read_program(std::string_view model = "model") const;
  /// Names of the programs, in the order of the archive.
  std::vector<std::string> models() const;

  /// The bytes of a payload's record: the whole storage; the payload's meta describes which part is
  /// the tensor. Throws InvalidArgument for a record that is missing or too small.
  std::span<const std::byte> bytes_of_weight(const Payload& payload) const;
  std::span<const std::byte> bytes_of_constant(const Payload& payload) const;

  /// Throws InvalidArgument for a record whose contents do not match its checksum. Reads the whole
  /// file. Of the texts that describe programs this is checked whenever they are read.
  void verify_contents() const;

  /// The record below the archive's directory, or nullptr: record("models/model.json").
  const files::ZipRecord* record(std::string_view name) const;
  const files::ZipReader& zip() const { return zip_; }
  const std::string& root() const { return root_; }
  const std::string& path() const { return zip_.path(); }

 private:
  explicit Archive(const std::filesystem::path& path);

  std::string_view required_text(std::string_view name) const;
  std::span<const std::byte> bytes_of(const Payload& payload, std::string_view folder) const;

  files::ZipReader zip_;
  std::string root_;  // with a trailing slash
};

/// The contents of a record, generated while they are written.
struct TESSERA_API RecordContents {
  uint64_t size = 0;
  /// Must call the sink with all bytes in order, in any number of parts.
  std::function<void(const std::function<void(std::span<const std::byte>)>& sink)> write;
};

struct TESSERA_API SaveOptions {
  /// By record ("data/weights/weight_3"): contents that replace those of the archive.
  std::map<std::string, RecordContents> replace;
};

/// Writes `program` as a `.pt2` that torch.export.load reads. Bytes of tensors, sample inputs and
/// everything that is not part of ExportedProgram are copied from `from`. An unchanged program
/// gives the same file, byte for byte. The file appears under its name only when it is complete.
TESSERA_API void save(const ExportedProgram& program, const Archive& from,
                      const std::filesystem::path& path, const SaveOptions& options);
inline void save(const ExportedProgram& program, const Archive& from,
                 const std::filesystem::path& path) {
  save(program, from, path, {});
}

/// One of the programs that are saved to one archive.
struct TESSERA_API NamedProgram {
  std::string model;  ///< "rank_0"
  const ExportedProgram* program = nullptr;
  const SaveOptions* records = nullptr;
};

/// Writes several programs as one `.pt2`, which torch.export.pt2_archive.load_pt2 reads. A record
/// of tensors that several of them name is written once. Each gets the sample inputs of `from`.
/// `extra`: further records by name ("extra/notes.txt").
TESSERA_API void save_all(const std::vector<NamedProgram>& programs, const Archive& from,
                          const std::filesystem::path& path,
                          const std::map<std::string, std::string>& extra = {});

}  // namespace tessera::program
