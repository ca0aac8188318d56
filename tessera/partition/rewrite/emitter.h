#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/program/graph.h"
#include "tessera/sharding/placement.h"

/// Appends nodes to a graph: how passes write ops.
///
///   Emitter emit(graph);
///   ValueId rows = emit.slice(x, 0, {0, 4});              // aten.slice.Tensor
///   ValueId sum = emit.wait(emit.all_reduce(rows, "sum", "0"));
///
/// Positions and sizes are in hints: 4 of a dim of 8. Where the tensor's size there is symbolic,
/// the same share of it is computed when the program runs (sym_size, floordiv, mul). Results have
/// metadata of local tensors.
namespace tessera::partition {

/// The type of the real and the imaginary part; nullopt for types that are not complex.
std::optional<DType> real_dtype(DType dtype);

class Emitter {
 public:
  using ValueId = program::ValueId;
  using Size = program::Size;

  explicit Emitter(program::Graph& graph) : graph_(graph) {}

  program::Graph& graph() { return graph_; }
  const program::TensorMeta& meta(ValueId id) const;
  /// Nodes that follow belong to the module of `node` (its metadata nn_module_stack).
  void belongs_to(const program::Node& node);
  /// Appends a node as it is.
  void append(program::Node node);

  /// Calls an op with one tensor as result; the value gets the op's name, or `result`, a value that
  /// has no definition any more.
  ValueId op(std::string_view target, std::vector<program::NamedArgument> inputs,
             program::TensorMeta meta);
  void define(ValueId result, std::string_view target, std::vector<program::NamedArgument> inputs);
  /// An op without results.
  void effect(std::string_view target, std::vector<program::NamedArgument> inputs);

  struct Span {
    int64_t begin = 0;
    int64_t end = 0;
  };
  ValueId slice(ValueId x, int dim, Span span);
  ValueId cat(const std::vector<ValueId>& parts, int dim);
  /// Zeros at the end of each dim up to `shape`.
  ValueId pad(ValueId x, std::span<const int64_t> shape);
  ValueId contiguous(ValueId x);
  ValueId flatten(ValueId x);
  /// A flat tensor as the shape that the dims of `like` have in hints `shape`.
  ValueId unflatten(ValueId x, ValueId like, std::span<const int64_t> shape);
  ValueId zeros_like(ValueId x);
  ValueId ones_like(ValueId x);
  ValueId multiply(ValueId x, double by);
  /// The same bytes as elements of another type of the same width.
  ValueId reinterpret(ValueId x, DType dtype);
  /// A complex tensor as a real one with a last dim of 2, and back; `x` of as_complex is dense.
  ValueId as_real(ValueId x);
  ValueId as_complex(ValueId x);

  // Collectives over the group of a name; the result is ready after `wait`.
  ValueId all_reduce(ValueId x, ReduceOp op, const std::string& group);
  ValueId all_gather(ValueId x, int64_t ranks, const std::string& group);
  ValueId reduce_scatter(ValueId x, ReduceOp op, int64_t ranks, const std::string& group);
  /// Along dim 0, by split sizes in hints.
  ValueId all_to_all(ValueId x, std::vector<program::IntOrValue> receive,
                     std::vector<program::IntOrValue> send, Size rows, const std::string& group);
  ValueId wait(ValueId x);

  /// `part` of dim `dim` of x, in hints.
  program::IntOrValue part(ValueId x, int dim, int64_t part);
  /// `part` of a sym_int, in hints.
  program::IntOrValue part(ValueId sym_int, int64_t part);
  /// The elements of the shape that the dims of x have in hints `shape`.
  program::IntOrValue count(ValueId x, std::span<const int64_t> shape);
  /// a // n, a * n, a % n of a sym_int.
  ValueId floordiv(ValueId a, int64_t n);
  ValueId times(ValueId a, program::IntOrValue b);
  /// The size of a dim when the program runs.
  ValueId sym_size(ValueId x, int dim);

  static program::NamedArgument tensor(std::string name, ValueId id);
  static program::NamedArgument named(std::string name, program::Argument arg);
  static program::Argument sizes(std::vector<program::IntOrValue> list);
  static program::Argument size(const program::IntOrValue& either);

 private:
  ValueId arithmetic(std::string_view name, ValueId a, const program::IntOrValue& b, Size result);
  program::TensorMeta with_sizes(ValueId x, std::vector<Size> sizes) const;

  program::Graph& graph_;
  std::string module_stack_;
  std::map<std::pair<uint32_t, int>, ValueId> sym_sizes_;  // by tensor and dim
};

}  // namespace tessera::partition
