#include "tessera/partition/write_sharded.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>
#include <system_error>

#include "tessera/base/errors.h"
#include "tessera/base/parallel_for.h"
#include "tessera/files/output_file.h"
#include "tessera/partition/manifest/groups.h"
#include "tessera/partition/shard_weights.h"
#include "tessera/program/index_range.h"
#include "tessera/program/pytree.h"

namespace tessera::partition {
namespace {

namespace fs = std::filesystem;
using program::ExportedProgram;
using program::ValueId;

ManifestTensor describe(std::string name, const program::Value& value, const Sharding& sharding) {
  ManifestTensor out;
  out.name = std::move(name);
  out.dtype = value.tensor->dtype;
  for (const auto& size : value.tensor->sizes) {
    out.shape.push_back(size.is_number() ? size.number() : -1);
  }
  out.placements.assign(sharding.placements().begin(), sharding.placements().end());
  return out;
}

/// One entry for each leaf of the call's arguments or results: tensors have a value.
struct Leaf {
  std::optional<ValueId> value;
  Sharding sharding;
};

void describe_leaves(const ExportedProgram& program, const std::vector<Leaf>& leaves,
                     const std::vector<std::string>& names, std::vector<ManifestTensor>& out) {
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].value) continue;
    const auto& value = program.graph.value(*leaves[i].value);
    const bool named = names.size() == leaves.size();
    out.push_back(describe(named ? names[i] : value.name, value, leaves[i].sharding));
  }
}

const ValueId* tensor_of(const program::Argument& argument) {
  return argument.kind == program::ArgKind::tensor ? &std::get<ValueId>(argument.data) : nullptr;
}

/// A directory that is removed with its contents unless it is given its name.
class DirectoryAside {
 public:
  explicit DirectoryAside(fs::path target) : target_(std::move(target)) {
    path_ = target_.string() + ".unfinished." + std::to_string(::getpid());
    std::error_code error;
    if (target_.has_parent_path()) fs::create_directories(target_.parent_path(), error);
    fs::create_directory(path_, error);
    require(!error, "cannot create the directory ", path_.string(), ": ", error.message());
  }
  ~DirectoryAside() {
    std::error_code ignored;
    if (!done_) fs::remove_all(path_, ignored);
  }
  DirectoryAside(const DirectoryAside&) = delete;
  DirectoryAside& operator=(const DirectoryAside&) = delete;

  const fs::path& path() const { return path_; }

  void rename() {
    if (!fs::exists(target_)) {
      fs::rename(path_, target_);
      done_ = true;
      return;
    }
    // In one step, so that a program that is killed here leaves one of the two under the name; then
    // what was there before is removed with this object.
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) {
      return;
    }
    const fs::path before = path_.string() + ".before";  // a file system that cannot exchange
    fs::rename(target_, before);
    fs::rename(path_, target_);
    done_ = true;
    fs::remove_all(before);
  }

 private:
  fs::path target_;
  fs::path path_;
  bool done_ = false;
};

void check_target(const fs::path& path, const WriteOptions& options) {
  require(!path.empty() && path.has_filename(), "the output '", path.string(), "' has no name");
  if (!fs::exists(path)) return;
  require(options.overwrite, path.string(), " exists: choose another name");
  require(is_sharded_program(path), path.string(),
          " is not a sharded program and is not overwritten");
  require(!options.single_file || !fs::is_directory(path), path.string(),
          " is a directory and is not replaced by a file");
}

/// The programs of all ranks, with the contents of their records.
struct RankPrograms {
  std::vector<ExportedProgram> programs;
  std::vector<program::SaveOptions> records;
};

/// `shared`: the names of the one archive that all are written to; otherwise each has its own.
RankPrograms make_programs(const program::Archive& archive, const ExportedProgram& program,
                           const Assignment& assignment, const RewriteOptions& rewrite,
                           const ByteProgress& progress, RecordNames* shared) {
  RankPrograms out;
  for (const int rank : assignment.mesh.ranks()) {
    RecordNames own;
    out.programs.push_back(program_of_rank(program, assignment, rank, rewrite));
    out.records.push_back(shard_weights(out.programs.back(), program, archive, assignment,
                                        assignment.mesh.with_own_rank(rank), progress,
                                        shared != nullptr ? *shared : own));
  }
  return out;
}

/// The bytes of tensors that are written; records of one name in one archive are written once.
uint64_t bytes_to_write(const RankPrograms& ranks, bool one_archive) {
  uint64_t sum = 0;
  std::set<std::string> seen;
  for (const auto& records : ranks.records) {
    for (const auto& [name, contents] : records.replace) {
      if (!one_archive || seen.insert(name).second) sum += contents.size;
    }
  }
  return sum;
}

void write_directory(const program::Archive& archive, const RankPrograms& ranks,
                     const Manifest& manifest, const fs::path& path) {
  DirectoryAside aside(path);
  parallel_for(ranks.programs.size(), [&](size_t i) {
    program::save(ranks.programs[i], archive, aside.path() / manifest.ranks[i].file,
                  ranks.records[i]);
  });
  files::OutputFile text(aside.path() / kManifestName);
  text.write(manifest.to_json());
  text.close();
  aside.rename();
}

void write_file(const program::Archive& archive, const RankPrograms& ranks, Manifest manifest,
                const fs::path& path) {
  std::vector<program::NamedProgram> programs;
  for (size_t i = 0; i < ranks.programs.size(); ++i) {
    RankProgram& one = manifest.ranks[i];
    one.file.clear();
    one.model = join_text("rank_", one.rank);
    programs.push_back({one.model, &ranks.programs[i], &ranks.records[i]});
  }
  std::error_code reported_by_open;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), reported_by_open);
  program::save_all(programs, archive, path, {{std::string(kManifestRecord), manifest.to_json()}});
}

}  // namespace

Manifest manifest_of(const ExportedProgram& program, const Assignment& assignment,
                     const std::string& source) {
  Manifest out;
  out.source = source;
  out.mesh = assignment.mesh;
  for (const int rank : out.mesh.ranks()) {
    out.ranks.push_back({rank, join_text("rank_", rank, ".pt2"), "model"});
  }
  out.groups = groups_of(out.mesh);
  std::vector<Leaf> inputs;
  for (const auto& spec : program.signature.inputs) {
    if (spec.kind == program::InputKind::constant_input) inputs.emplace_back();
    if (spec.kind != program::InputKind::user_input || !spec.arg) continue;
    const ValueId* id = tensor_of(*spec.arg);
    inputs.push_back(id != nullptr ? Leaf{*id, assignment.of(*id)} : Leaf{});
  }
  std::vector<Leaf> outputs;
  for (size_t i = 0; i < program.signature.outputs.size(); ++i) {
    const auto& spec = program.signature.outputs[i];
    if (spec.kind != program::OutputKind::user_output || !spec.arg) continue;
    const ValueId* id = tensor_of(*spec.arg);
    outputs.push_back(id != nullptr ? Leaf{*id, assignment.outputs[i]} : Leaf{});
  }
  const auto names = [](const std::string& spec, const auto& read) {
    return spec.empty() ? std::vector<std::string>() : read(program::parse_pytree(spec));
  };
  describe_leaves(program, inputs,
                  names(program.in_spec,
                        [&](const program::Pytree& tree) {
                          return program::input_names(tree, program.forward_arg_names);
                        }),
                  out.inputs);
  for (size_t i = 0, tensor = 0; i < inputs.size(); ++i) {
    if (inputs[i].value)
      out.inputs[tensor++].indexes_below =
          program::rows_indexed_by(program.graph, *inputs[i].value);
  }
  describe_leaves(program, outputs, names(program.out_spec, program::output_names), out.outputs);
  return out;
}

void write_sharded(const program::Archive& archive, const ExportedProgram& program,
                   const Assignment& assignment, const fs::path& given,
                   const WriteOptions& options) {
  const fs::path path = given.has_filename() ? given : given.parent_path();
  check_target(path, options);
  archive.verify_contents();  // what is written has checksums of its own, right for damaged weights
  const DeviceMesh& mesh = assignment.mesh;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    require(std::ranges::find(mesh.ranks(), rank) != mesh.ranks().end(),
            "a program is sharded for the ranks 0 to ", mesh.size() - 1, ", not for ", mesh);
  }
  const Manifest manifest =
      manifest_of(program, assignment, fs::path(archive.path()).filename().string());
  WriteProgress progress;
  std::mutex one_at_a_time;
  const ByteProgress count = [&](uint64_t bytes) {
    const std::lock_guard lock(one_at_a_time);
    progress.bytes += bytes;
    if (options.progress) options.progress(progress);
  };
  RecordNames shared;
  const RankPrograms ranks = make_programs(archive, program, assignment, options.rewrite, count,
                                           options.single_file ? &shared : nullptr);
  progress.total = bytes_to_write(ranks, options.single_file);
  if (options.single_file) {
    write_file(archive, ranks, manifest, path);
  } else {
    write_directory(archive, ranks, manifest, path);
  }
}

}  // namespace tessera::partition
