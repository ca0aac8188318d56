#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/comm/group.h"
#include "tessera/program/archive.h"

namespace tessera {

/// An input or output of a program as its caller sees it: nested arguments and results are
/// flattened, and each leaf is named by its path ("extra.shift", "best.0").
struct TESSERA_API ProgramPort {
  std::string name;
  /// Of a tensor: element type and shape, with symbols for dynamic sizes.
  std::optional<program::TensorMeta> tensor;

  /// "tokens: i64 s1xs2".
  std::string to_text() const;
};

struct TESSERA_API ProgramOptions {
  /// Where weights go and nodes compute; absent: where the program was exported for.
  std::optional<c10::Device> device{};
  /// By the name that the program's collectives use: the process group that they run on. Other
  /// names must be known to c10d when the program is loaded.
  std::map<std::string, std::shared_ptr<const comm::Group>> groups{};
  /// Which program of a file that holds several.
  std::string model = "model";
};

/// An exported program (`.pt2`) that can be run, without Python.
///
///   Program program = Program::load("model.pt2");
///   auto results = program.run({tokens});                        // by position
///   auto named = program.run_named({{"tokens", tokens}, {"mask", m}});
///   results[0].toTensor()
///
/// - Loading maps the file: weights are read when an op reads them, and tied weights stay tied.
///   Every node is checked against its operator's schema; a fault is an InvalidArgument with the
///   file, the record and the node.
/// - Running computes what Python does with the same file, to the bit, without gradients. Buffers
///   that the program updates keep their values from run to run (the file does not change).
/// - Collectives (`_c10d_functional`) need their process groups: ProgramOptions::groups, or
///   sharded_program.h, which brings them.
/// - Higher-order ops (torch.cond, ...) and tensors that only Python can make are NotSupported.
///
/// Moves, does not copy. One thread at a time may run it; two programs loaded from one file share
/// the pages of its weights.
class TESSERA_API Program {
 public:
  using Values = std::vector<c10::IValue>;
  using NamedValues = std::vector<std::pair<std::string, c10::IValue>>;

  static Program load(const std::filesystem::path& path, const ProgramOptions& options = {});
  /// A program that was read, and perhaps changed, already. Weights come from `archive`.
  static Program from(program::ExportedProgram exported,
                      std::shared_ptr<const program::Archive> archive,
                      const ProgramOptions& options = {});

  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;
  ~Program();

  /// What run() takes and gives, in order. Arguments that were fixed at export (numbers, text,
  /// None) are not among the inputs.
  const std::vector<ProgramPort>& inputs() const;
  const std::vector<ProgramPort>& outputs() const;

  /// The results for these inputs. Throws InvalidArgument for inputs of another number, type, shape
  /// or device than the program wants, and for errors of ops, with the node.
  Values run(Values inputs);
  /// The same by name; all inputs must be given, in any order.
  NamedValues run_named(const NamedValues& inputs);

  /// Values by name in the order of inputs(); InvalidArgument for names that are unknown, missing
  /// or given twice.
  Values in_order(const NamedValues& inputs) const;

  /// A parameter, buffer or constant by its name in the model ("layers.0.weight"); InvalidArgument
  /// if there is none. Writes to it change later runs, not the file.
  at::Tensor tensor(std::string_view name) const;

  const program::ExportedProgram& exported() const;
  const std::string& path() const;

 private:
  class Impl;
  explicit Program(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
