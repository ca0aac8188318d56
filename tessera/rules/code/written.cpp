#include "tessera/rules/code/written.h"

#include <cctype>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/rules/expand.h"

namespace tessera::rules {

Rule written_rule(std::string_view op, std::string_view what, WriteLine write) {
  Rule rule;
  rule.op = op;
  rule.text = what;
  rule.rows = [write](const OpCall& call, int axis) {
    const std::string line = write(call);
    if (line.empty()) return std::vector<Row>();
    const auto lines = parse_notation(line);
    const auto bound = bind(lines, call);
    return bound ? expand(*bound, call, axis) : std::vector<Row>();
  };
  rule.refused = [write](const OpCall& call, int axis) {
    const std::string line = write(call);
    if (line.empty()) return std::vector<Refusal>();
    const auto lines = parse_notation(line);
    const auto bound = bind(lines, call);
    return bound ? refusals(*bound, call, axis) : std::vector<Refusal>();
  };
  rule.infer = [write](const OpCall& call) {
    const std::string line = write(call);
    if (line.empty()) return std::vector<ResultMeta>();
    const auto lines = parse_notation(line);
    const auto bound = bind(lines, call);
    return bound ? infer_shapes(*bound) : std::vector<ResultMeta>();
  };
  return rule;
}

Sharding tensor_of(const OpCall& call, std::string_view name) {
  const Arg* arg = call.find(name);
  const auto* tensor = arg != nullptr ? std::get_if<Sharding>(arg) : nullptr;
  return tensor != nullptr ? *tensor : Sharding();
}

std::vector<Sharding> tensors_of(const OpCall& call, std::string_view name) {
  const Arg* arg = call.find(name);
  const auto* list = arg != nullptr ? std::get_if<std::vector<Sharding>>(arg) : nullptr;
  return list != nullptr ? *list : std::vector<Sharding>();
}

int dim_of(const OpCall& call, std::string_view name, int ndim) {
  if (ndim == 0) return -1;
  const int64_t dim = call.int_or(name, 0);
  require(dim >= -ndim && dim < ndim, call.op, ": dim ", dim, " of a tensor with ", ndim, " dims");
  return static_cast<int>(dim < 0 ? dim + ndim : dim);
}

std::string letters_for(int ndim, char first) {
  std::string out;
  for (int d = 0; d < ndim; ++d) out += static_cast<char>(first + d);
  return out;
}

char upper(char letter) {
  return static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
}

LocalArg local_shape_of_result(std::string name, int result) {
  return {
      std::move(name),
      [result](const OpCall&, std::span<const Sharding>, std::span<const Sharding> results) -> Arg {
        const auto shape = results[static_cast<size_t>(result)].local_shape();
        return std::vector<int64_t>(shape.begin(), shape.end());
      }};
}

std::vector<ResultMeta> contiguous_input(const OpCall& call) {
  ResultMeta meta;
  meta.shape = call.ints("input_sizes");
  meta.stride = contiguous_stride(meta.shape);
  meta.dtype = call.operands().front().dtype();
  return {meta};
}

}  // namespace tessera::rules
