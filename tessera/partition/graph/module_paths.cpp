#include "tessera/partition/graph/module_paths.h"

#include <algorithm>
#include <set>

#include "tessera/base/iota_vector.h"

namespace tessera::partition {
namespace {

using program::ValueId;

/// The paths of a node's modules, outermost first: "name,path,class" joined by ';'.
std::vector<std::string> paths_of(const program::Node& node) {
  std::vector<std::string> out;
  std::string_view text = node.metadata_of("nn_module_stack");
  while (!text.empty()) {
    const size_t end = std::min(text.find(';'), text.size());
    const std::string_view entry = text.substr(0, end);
    const size_t first = entry.find(','), last = entry.rfind(',');
    if (first != last && entry.find("_empty_nn_module_stack") == std::string_view::npos)
      out.emplace_back(entry.substr(first + 1, last - first - 1));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

bool is_inside(std::string_view path, std::string_view module) {
  if (module.empty() || path == module) return true;
  return path.starts_with(module) && path.size() > module.size() && path[module.size()] == '.';
}

/// The weight's dims after the node, which only moves or repeats elements; -1: a new dim.
std::optional<std::vector<int>> turned_dims(const NodeCall& call, const std::vector<int>& dims) {
  const auto ndim = static_cast<int64_t>(dims.size());
  const auto at = [&](int64_t d) { return static_cast<size_t>(d < 0 ? d + ndim : d); };
  std::vector<int> out = dims;
  const std::string& op = call.op();
  const bool reverses = op == "aten::t" || op == "aten::numpy_T" || op == "aten::mT";
  if (reverses && ndim == 2) {
    std::swap(out[0], out[1]);
  } else if (op == "aten::permute") {
    const auto order = call.call().ints("dims");
    for (size_t d = 0; d < out.size(); ++d) out[d] = dims[at(order[d])];
  } else if (op == "aten::transpose.int") {
    std::swap(out[at(call.call().int_or("dim0", 0))], out[at(call.call().int_or("dim1", 1))]);
  } else if (op == "aten::unsqueeze") {
    const int64_t d = call.call().int_or("dim", 0);
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(d < 0 ? d + ndim + 1 : d), -1);
  } else if (op == "aten::expand") {
    out.insert(out.begin(), call.call().ints("size").size() - out.size(), -1);
  } else if (op == "aten::view" || op == "aten::reshape" || op == "aten::_unsafe_view") {
    // Batches of the same matrix, by another count of dims.
    const auto from = call.call().operands()[0].shape();
    const auto to = call.call().ints(op == "aten::reshape" ? "shape" : "size");
    const bool ends = to.size() >= 2 && from.size() >= 2 && to[to.size() - 1] == from.back() &&
                      to[to.size() - 2] == from[from.size() - 2];
    if (!ends) return std::nullopt;
    const std::vector<int> last = {out[out.size() - 2], out.back()};
    out.assign(to.size() - 2, -1);
    out.insert(out.end(), last.begin(), last.end());
  } else if (op != "aten::_to_copy" && !op.starts_with("aten::to.") && op != "aten::clone" &&
             op != "aten::alias" && op != "aten::detach" && op != "aten::contiguous") {
    return std::nullopt;
  }
  return out;
}

/// The weight of a transposed convolution is [in, out, ...].
bool is_transposed(const NodeCall& call) {
  const rules::Arg* transposed = call.call().find("transposed");
  const auto* set = transposed != nullptr ? std::get_if<bool>(transposed) : nullptr;
  return call.op().starts_with("aten::conv_transpose") || (set != nullptr && *set);
}

std::optional<FeatureDims> find_use(const ProgramView& view, ValueId id,
                                    const std::vector<int>& dims, const std::string& path) {
  const auto n = static_cast<int>(dims.size());
  if (n < 2) return std::nullopt;
  const auto dim = [&](int d) { return dims[static_cast<size_t>(d < 0 ? d + n : d)]; };
  std::optional<FeatureDims> found;
  for (const auto& reader : view.readers(id)) {
    if (reader.node == view.nodes()) continue;
    const NodeCall& call = view.call(reader.node);
    const std::string& op = call.op();
    std::optional<FeatureDims> here;
    if (op == "aten::embedding" && reader.operand == 0) {
      here = FeatureDims{dim(1), dim(0), true};
    } else if ((op == "aten::linear" || op.starts_with("aten::conv")) && reader.operand == 1) {
      const int in = is_transposed(call) ? 0 : 1;
      here = FeatureDims{dim(1 - in), dim(in), false};
    } else if (((op == "aten::mm" || op == "aten::matmul" || op == "aten::bmm") &&
                reader.operand == 1) ||
               ((op == "aten::addmm" || op == "aten::baddbmm") && reader.operand == 2)) {
      here = FeatureDims{dim(-1), dim(-2), false};
    } else if (const auto turned = turned_dims(call, dims); turned && reader.operand == 0) {
      here = find_use(view, call.results()[0], *turned, path);
    }
    if (!here || here->out < 0 || here->in < 0) continue;
    if (module_of(view.graph().nodes[reader.node]) == path) return here;
    if (!found) found = here;
  }
  return found;
}

}  // namespace

std::vector<std::string> module_paths(const program::ExportedProgram& program) {
  std::set<std::string> out;
  for (const auto& node : program.graph.nodes) {
    for (auto& path : paths_of(node)) out.insert(std::move(path));
  }
  for (const auto& input : program.signature.inputs) {
    for (size_t dot = input.target.rfind('.'); dot != std::string::npos && dot > 0;
         dot = input.target.rfind('.', dot - 1))
      out.insert(input.target.substr(0, dot));
  }
  return {out.begin(), out.end()};
}

std::string module_of(const program::Node& node) {
  const auto paths = paths_of(node);
  return paths.empty() ? "" : paths.back();
}

std::vector<ValueId> values_leaving(const ProgramView& view, const std::string& path) {
  std::vector<ValueId> out;
  const auto inside = [&](size_t node) {
    return node < view.nodes() && is_inside(module_of(view.graph().nodes[node]), path);
  };
  for (size_t n = 0; n < view.nodes(); ++n) {
    if (!inside(n)) continue;
    for (const ValueId id : view.call(n).results()) {
      const auto& readers = view.readers(id);
      const bool leaves = std::ranges::any_of(readers, [&](const auto& r) {
        return !inside(r.node) && !(r.node < view.nodes() && view.reads_metadata_only(r.node));
      });
      if (leaves) out.push_back(id);
    }
  }
  return out;
}

std::optional<FeatureDims> feature_dims(const ProgramView& view, ValueId weight,
                                        const std::string& path) {
  return find_use(view, weight, iota_vector<int>(view.whole(weight).ndim()), path);
}

}  // namespace tessera::partition
