#include "cli/op_names.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "tessera/base/iota_vector.h"

namespace tessera::cli {
namespace {

/// The edit distance: insertions, deletions and replacements.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row = iota_vector(b.size() + 1);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t corner = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = corner + (a[i] == b[j] ? 0 : 1);
      corner = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::optional<c10::OperatorHandle> find_op(const std::string& name) {
  return c10::Dispatcher::singleton().findSchema(dtensor::parse_op_name(name));
}

std::vector<c10::OperatorHandle> overloads_of(const std::string& packet) {
  std::vector<c10::OperatorHandle> out;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name != packet) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    const bool writes = std::ranges::any_of(op->schema().arguments(), &c10::Argument::is_out);
    if (!writes) out.push_back(*op);
  }
  std::ranges::sort(out, {}, [](const auto& op) { return op_name(op.operator_name()); });
  return out;
}

std::string schema_text(const c10::FunctionSchema& schema) {
  std::ostringstream out;
  out << schema;
  const std::string text = out.str();
  return text.substr(0, text.rfind(" -> "));
}

std::string similar_text(const std::string& name) {
  const std::string packet = dtensor::parse_op_name(name).name;
  const size_t near = std::max<size_t>(2, packet.size() / 5);
  std::set<std::pair<size_t, std::string>> found;
  for (const auto& known : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!known.name.starts_with("aten::")) continue;
    const size_t far = distance(packet, known.name);
    if (far <= near) found.emplace(far, known.name);
  }
  if (const auto overloads = overloads_of(packet); !overloads.empty()) {
    found.clear();
    for (const auto& op : overloads) found.emplace(0, op_name(op.operator_name()));
  }
  std::string out;
  int shown = 0;
  for (const auto& [far, one] : found) {
    if (++shown > 5) break;
    out += (out.empty() ? "; did you mean " : ", ") + one;
  }
  return out.empty() ? out : out + "?";
}

}  // namespace tessera::cli
