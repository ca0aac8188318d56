#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/text.h"
#include "tessera/rules/choice/choose.h"

/// Calls written as text, for tables:  `aten::sum.dim_IntList 8x6 dim={1}`. Tensors as shapes, with
/// ":i64" where they are not f32, `-` for one that was not given, `[8x6;8x6]` for a list; other
/// arguments by name.
namespace tessera::test {

/// Argument names of tensors that rules look up; the others get none.
inline std::vector<std::string> tensor_names(std::string_view op) {
  static const std::map<std::string, std::vector<std::string>, std::less<>> names = {
      {"aten::cat", {"tensors"}},
      {"aten::stack", {"tensors"}},
      {"aten::copy_", {"self", "src"}},
      {"aten::gather", {"self", "index"}},
      {"aten::index_select", {"self", "index"}},
      {"aten::scatter_add", {"self", "index", "src"}},
      {"aten::index_add", {"self", "index", "source"}},
      {"aten::index.Tensor", {"self", "indices"}},
      {"aten::index_put", {"self", "indices", "values"}},
  };
  const auto it = names.find(op);
  return it == names.end() ? std::vector<std::string>{"self"} : it->second;
}

class TextCall {
 public:
  /// `mesh` "tp=4"; a shape may carry placements: "8x6@S0".
  TextCall(std::string_view mesh, std::string_view line) : mesh_(DeviceMesh::parse(mesh)) {
    const auto words = split(line, ' ');
    op_ = words[0];
    const auto names = tensor_names(op_);
    size_t tensors = 0;
    names_.reserve(words.size());
    for (size_t w = 1; w < words.size(); ++w) {
      const std::string& word = words[w];
      if (const size_t equals = word.find('='); equals != std::string::npos) {
        names_.push_back(word.substr(0, equals));
        args_.push_back({names_.back(), value(word.substr(equals + 1))});
        continue;
      }
      names_.push_back(tensors < names.size() ? names[tensors] : "");
      ++tensors;
      if (word.starts_with('[')) {
        std::vector<Sharding> list;
        for (const auto& item : split(word.substr(1, word.size() - 2), ';'))
          list.push_back(tensor(item));
        args_.push_back({names_.back(), list});
      } else {
        args_.push_back({names_.back(), tensor(word)});
      }
    }
  }

  rules::OpCall get() const { return {op_, args_, mesh_, {}}; }
  const std::string& op() const { return op_; }

 private:
  static std::vector<std::string> split(std::string_view text, char at) {
    std::vector<std::string> out;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(at, begin), text.size());
      if (end > begin) out.emplace_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return out;
  }

  Sharding tensor(const std::string& word) const {
    if (word == "-") return {};
    const size_t at = word.find('@');
    std::string shape = word.substr(0, at), placements;
    if (at != std::string::npos) {
      placements = word.substr(at + 1);
    } else {
      for (int axis = 0; axis < mesh_.ndim(); ++axis) placements += axis > 0 ? ",R" : "R";
    }
    std::replace(shape.begin(), shape.end(), ':', ' ');
    return Sharding::parse(mesh_.to_text() + " : " + placements + " : " + shape);
  }

  static rules::Arg value(const std::string& text) {
    if (text == "none") return std::monostate();
    if (text == "true") return true;
    if (text == "false") return false;
    if (text.starts_with('{')) {
      std::vector<int64_t> out;
      for (const auto& i : split(text.substr(1, text.size() - 2), ','))
        out.push_back(std::stoll(i));
      return out;
    }
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text.find_first_not_of("-0123456789") == std::string::npos)
      return static_cast<int64_t>(std::stoll(text));
    if (text.find_first_not_of("-0123456789.e") == std::string::npos) return std::stod(text);
    return text;
  }

  DeviceMesh mesh_;
  std::string op_;
  std::vector<std::string> names_;
  std::vector<rules::NamedArg> args_;
};

/// "S0,R -> S0"
inline std::string text_of(const rules::Row& row) {
  const auto list = [](const std::vector<Placement>& placements) {
    std::string out;
    for (size_t i = 0; i < placements.size(); ++i)
      out += (i > 0 ? "," : "") + placements[i].to_text();
    return out;
  };
  return list(row.operands) + " -> " + list(row.results);
}

}  // namespace tessera::test
