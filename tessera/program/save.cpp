#include <algorithm>
#include <set>
#include <system_error>

#include "tessera/base/errors.h"
#include "tessera/base/parallel_for.h"
#include "tessera/files/crc32.h"
#include "tessera/files/zip_writer.h"
#include "tessera/program/archive.h"

namespace tessera::program {
namespace {

constexpr std::string_view kWeights = "data/weights/";
constexpr std::string_view kConstants = "data/constants/";
constexpr std::string_view kOnlyModel = "model";
constexpr std::string_view kSerializationId = ".data/serialization_id";

std::string sample_inputs_of(std::string_view model) {
  return join_text("data/sample_inputs/", model, ".pt");
}

/// The final records of an archive, in the order in which PyTorch writes them.
constexpr std::string_view kClosing[] = {"archive_format", "archive_version", ".data/version",
                                         "byteorder"};

class Saver {
 public:
  /// `concurrent`: contents of tensors are written at the end, by several threads.
  struct Options {
    bool concurrent = false;
  };

  Saver(const Archive& from, const std::filesystem::path& path, Options options)
      : from_(from), zip_(path), options_(options) {}

  void add(const NamedProgram& one) {
    const ExportedProgram& program = *one.program;
    const ProgramRecords texts = print_program(program);
    tensors(program.weights, *one.records, kWeights);
    text(join_text(kWeights, one.model, "_weights_config.json"), texts.weights_config);
    tensors(program.constants, *one.records, kConstants);
    text(join_text(kConstants, one.model, "_constants_config.json"), texts.constants_config);
    text(join_text("models/", one.model, ".json"), texts.model);
    if (one.model == kOnlyModel) return;
    const auto* sample = from_.record(sample_inputs_of(kOnlyModel));
    if (sample != nullptr) {
      text(sample_inputs_of(one.model), from_.zip().text(*sample));
      done_.insert(sample_inputs_of(kOnlyModel));
    }
    done_.insert(join_text("models/", kOnlyModel, ".json"));
  }

  void text(std::string_view name, std::string_view contents) {
    const auto* before = from_.record(name);
    changed_ = changed_ || before == nullptr || from_.zip().text(*before) != contents;
    note(contents);
    zip_.add(full(name), contents);
    done_.emplace(name);
  }

  void finish() {
    rest();
    for (const auto name : kClosing) {
      if (from_.record(name) != nullptr) copy(name);
    }
    serialization_id();
    parallel_for(delayed_.size(), [this](size_t i) {
      Delayed& one = delayed_[i];
      one.contents->write([&](std::span<const std::byte> part) { zip_.write(one.slot, part); });
    });
    zip_.finish();
  }

 private:
  std::string full(std::string_view name) const { return from_.root() + std::string(name); }

  void copy(std::string_view name) {
    const auto* record = from_.record(name);
    require(record != nullptr, from_.path(), " has no record ", name);
    zip_.copy(from_.zip(), *record);
    done_.emplace(name);
  }

  void tensors(const std::vector<Payload>& payloads, const SaveOptions& options,
               std::string_view folder) {
    for (const auto& payload : payloads) {
      const std::string name = join_text(folder, payload.path_name);
      if (done_.contains(name)) continue;  // tied, or of an earlier program too
      const auto replacement = options.replace.find(name);
      if (replacement == options.replace.end()) {
        copy(name);
        continue;
      }
      changed_ = true;
      replace(name, replacement->second);
      done_.insert(name);
    }
  }

  void replace(const std::string& name, const RecordContents& contents) {
    if (options_.concurrent) {
      delayed_.push_back({zip_.reserve(full(name), contents.size), &contents});
      return;
    }
    zip_.begin(full(name), contents.size);
    contents.write([this](std::span<const std::byte> part) { zip_.write(part); });
  }

  /// Sample inputs, extra files and everything else in the archive. Tensors that the program no
  /// longer has are left out.
  void rest() {
    for (const auto& record : from_.zip().records()) {
      const std::string_view name = std::string_view(record.name).substr(from_.root().size());
      const bool tensor = name.starts_with(kWeights) || name.starts_with(kConstants);
      const bool closing = name == kSerializationId || std::ranges::count(kClosing, name) > 0;
      if (tensor || closing || done_.contains(std::string(name))) continue;
      copy(name);
    }
  }

  /// PyTorch's id is a digest of names and contents: kept if nothing changed, else computed from
  /// the written texts, in its form of 40 digits.
  void serialization_id() {
    if (!changed_) {
      if (from_.record(kSerializationId) != nullptr) copy(kSerializationId);
      return;
    }
    std::string digits = std::to_string(digest_);
    digits.insert(0, 20 - digits.size(), '0');
    zip_.add(full(kSerializationId), digits + digits);
  }

  void note(std::string_view contents) {
    const auto bytes = std::as_bytes(std::span(contents.data(), contents.size()));
    digest_ = digest_ * 0x9E3779B97F4A7C15ULL + files::crc32(bytes) + contents.size();
  }

  struct Delayed {
    files::ZipWriter::Slot slot;
    const RecordContents* contents = nullptr;
  };

  const Archive& from_;
  files::ZipWriter zip_;
  Options options_;
  std::vector<Delayed> delayed_;
  std::set<std::string> done_;
  bool changed_ = false;
  uint64_t digest_ = 0;
};

}  // namespace

void save(const ExportedProgram& program, const Archive& from, const std::filesystem::path& path,
          const SaveOptions& options) {
  save_all({{std::string(kOnlyModel), &program, &options}}, from, path);
}

void save_all(const std::vector<NamedProgram>& programs, const Archive& from,
              const std::filesystem::path& path, const std::map<std::string, std::string>& extra) {
  // Written to a temporary file and renamed: `path` may be the file that `from` has mapped.
  const std::filesystem::path unfinished = path.string() + ".unfinished";
  try {
    // One program of several that are saved at once needs no threads of its own.
    Saver saver(from, unfinished, {.concurrent = programs.size() > 1});
    for (const auto& one : programs) saver.add(one);
    for (const auto& [name, contents] : extra) saver.text(name, contents);
    saver.finish();
    std::filesystem::rename(unfinished, path);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(unfinished, ignored);
    throw;
  }
}

}  // namespace tessera::program
