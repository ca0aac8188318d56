#include "tessera/partition/rewrite/local_symbols.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"
#include "tessera/partition/graph/sizes.h"

namespace tessera::partition {
namespace {

using program::ArgKind;
using program::Argument;
using program::ExportedProgram;
using program::Expression;
using program::InputKind;
using program::Size;
using program::ValueId;
using Json = nlohmann::ordered_json;

/// Calls visit(value, dim, symbol) for every dim of an input tensor that is a symbol.
template <typename Visit>
void each_input_symbol(const ExportedProgram& program, const Visit& visit) {
  for (const auto& input : program.signature.inputs) {
    if (input.kind != InputKind::user_input || !input.arg) continue;
    program::each_value(*input.arg, [&](ValueId id) {
      const auto& value = program.graph.value(id);
      for (size_t d = 0; value.tensor && d < value.tensor->sizes.size(); ++d) {
        const auto& expression = value.tensor->sizes[d].expression();
        const auto symbol = expression ? expression->as_symbol() : std::nullopt;
        if (symbol) visit(id, static_cast<int>(d), *symbol);
      }
    });
  }
}

struct Dim {
  ValueId value;
  int dim = 0;
};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

/// `symbol` becomes `n` times itself; the n-th part of it is then the symbol.
Size with_multiple(const Size& size, const std::string& symbol, int64_t n) {
  if (!size.expression() || !size.expression()->symbols().contains(symbol)) return size;
  const std::string name = Expression::symbol(symbol).to_srepr();
  const std::string part = join_text("FloorDiv(", name, ", Integer(", n, "))");
  const std::string mark = "\x01";
  std::string text = size.expression()->to_srepr();
  replace_all(text, part, mark);
  replace_all(text, name, join_text("Mul(Integer(", n, "), ", mark, ")"));
  replace_all(text, mark, name);
  return {Expression::parse(text), size.hint()};
}

void clear_guards(ExportedProgram& program) {
  if (program.program_json.empty()) return;
  Json json = Json::parse(program.program_json);
  if (json.contains("guards_code")) json["guards_code"] = Json::array();
  program.program_json = json.dump();
}

void substitute(ExportedProgram& program, const std::string& symbol, int64_t n) {
  const auto change = [&](Size& size) { size = with_multiple(size, symbol, n); };
  for (auto& value : program.graph.values) {
    if (value.size) change(*value.size);
    if (!value.tensor) continue;
    for (Size& size : value.tensor->sizes) change(size);
    for (Size& stride : value.tensor->strides) change(stride);
    change(value.tensor->storage_offset);
  }
  for (auto& [name, range] : program.range_constraints) {
    if (name != symbol) continue;
    if (range.min) range.min = (*range.min + n - 1) / n;
    if (range.max) range.max = *range.max / n;
  }
}

}  // namespace

void check_divisible(Emitter& emit, const ExportedProgram& program, const Assignment& assignment) {
  std::map<std::string, Dim> whole;
  each_input_symbol(program, [&](ValueId id, int dim, const std::string& symbol) {
    const Sharding& sharding = assignment.of(id);
    if (!sharding.defined() || sharding.axes_of_dim(dim).empty())
      whole.emplace(symbol, Dim{id, dim});
  });
  for (const auto& [symbol, by] : assignment.divisible) {
    const auto found = whole.find(symbol);
    if (found == whole.end()) continue;  // the caller shards it
    const ValueId size = emit.sym_size(found->second.value, found->second.dim);
    const Expression rest =
        Expression::call("Mod", {Expression::symbol(symbol), Expression::integer(by)});
    auto& graph = emit.graph();
    program::Value remainder{graph.unused_name("mod"), program::ValueKind::sym_int, {}, {}, {}};
    remainder.size = Size(rest, 0);
    const ValueId mod = graph.add_value(std::move(remainder));
    emit.define(
        mod, "_operator.mod",
        {Emitter::named("a", Emitter::size(size)), Emitter::named("b", Argument::of_int(by))});
    program::Value truth{graph.unused_name("eq"), program::ValueKind::sym_bool, {}, {}, {}};
    truth.json =
        Json{
            {"as_expr",
             {{"expr_str", Expression::call("Equality", {rest, Expression::integer(0)}).to_srepr()},
              {"hint", {{"as_bool", true}}}}}}
            .dump();
    const ValueId divides = graph.add_value(std::move(truth));
    emit.define(
        divides, "_operator.eq",
        {Emitter::named("a", Emitter::size(mod)), Emitter::named("b", Argument::of_int(0))});
    const std::string& name = program.graph.value(found->second.value).name;
    emit.effect("torch.ops.aten._assert_scalar.default",
                {Emitter::named("self", {ArgKind::sym_bool, program::BoolOrValue(divides)}),
                 Emitter::named("assert_msg", Argument::of_string(join_text(
                                                  "dim ", found->second.dim, " of ", name,
                                                  " must be a multiple of ", by,
                                                  ": it is sharded over that many ranks")))});
  }
}

void localise_symbols(ExportedProgram& local, const ExportedProgram& program,
                      const Assignment& assignment, const DeviceMesh& mesh) {
  std::map<std::string, int64_t> parts;  // 1: some input has the whole size
  bool sharded = false;
  each_input_symbol(program, [&](ValueId id, int dim, const std::string& symbol) {
    const Sharding sharding = seen_in(assignment.of(id), mesh);
    int64_t n = 1;
    if (sharding.defined()) {
      for (const int axis : sharding.axes_of_dim(dim)) n *= sharding.mesh().size(axis);
    }
    sharded |= n > 1;
    const auto [known, added] = parts.emplace(symbol, n);
    if (!added && known->second != n) known->second = 1;
  });
  for (const auto& [symbol, n] : parts) {
    if (n > 1) substitute(local, symbol, n);
  }
  for (const auto& input : program.signature.inputs) {
    if (input.kind != InputKind::user_input || !input.arg) continue;
    program::each_value(*input.arg, [&](ValueId id) { sharded |= is_sharded(assignment.of(id)); });
  }
  // Guards are Python text about the inputs of the whole program.
  if (sharded) clear_guards(local);
}

}  // namespace tessera::partition
