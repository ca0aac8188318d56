#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tessera/rules/tables/tables.h"
#include "tests/rules_proof/sample.h"

/// The samples that rules are proven with: samples/*.txt, a file for each table or file of code
/// rules, and those that the schemas of pointwise ops suggest.
namespace tessera::test {

constexpr const char* kSamples = "tests/rules_proof/samples";

inline std::vector<std::string> sample_families() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(kSamples)) {
    if (entry.path().extension() == ".txt") out.push_back(entry.path().stem().string());
  }
  std::ranges::sort(out);
  return out;
}

/// The lines of a file, without empty ones and remarks (#).
inline std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> out;
  std::ifstream file(path);
  if (!file) throw std::invalid_argument("cannot read " + path + "; run in the project's folder");
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && !line.starts_with('#')) out.push_back(line);
  }
  return out;
}

inline std::vector<std::string> samples_of(const std::string& family) {
  return lines_of(std::string(kSamples) + "/" + family + ".txt");
}

inline bool op_exists(std::string_view op) {
  const size_t dot = op.find('.');
  return c10::Dispatcher::singleton()
      .findSchema({std::string(op.substr(0, dot)),
                   std::string(dot == std::string_view::npos ? "" : op.substr(dot + 1))})
      .has_value();
}

/// A sample for a pointwise op, from its schema; empty if none runs.
inline std::string guess_sample(const std::string& op, bool broadcast) {
  const auto handle = find_op(op);
  for (const char* type : {":pos", ":i64<5", ":bool", ":c128"}) {
    std::string line = op;
    int tensors = 0;
    for (const auto& a : handle.schema().arguments()) {
      const auto kind = a.type()->kind();
      if (is_tensor_type(a.type())) {
        line += std::string(broadcast && tensors++ == 1 ? " 3" : " 5x3") + type;
      } else if (!a.default_value() && kind == c10::TypeKind::NumberType) {
        line += " " + a.name() + "=2";
      } else if (!a.default_value() && kind == c10::TypeKind::IntType) {
        line += " " + a.name() + "=2";
      } else if (!a.default_value() && kind == c10::TypeKind::BoolType) {
        line += " " + a.name() + "=true";
      } else if (!a.default_value() && kind == c10::TypeKind::FloatType) {
        line += " " + a.name() + "=0.5";
      }
    }
    try {
      auto sample = parse_sample(line);
      sample.op.callBoxed(sample.stack);
      return line;
    } catch (const std::exception&) {
    }
  }
  return {};
}

/// Ops that draw: no two runs of the plain one agree.
inline bool draws(std::string_view op) {
  for (const char* name :
       {"rand", "bernoulli", "poisson", "normal", "uniform", "exponential", "geometric", "cauchy",
        "binomial", "_standard_gamma", "dropout", "rrelu", "random", "multinomial"}) {
    if (op.find(name) != std::string_view::npos && op.find("grad") == std::string_view::npos &&
        op.find("backward") == std::string_view::npos &&
        op.find("normalize") == std::string_view::npos)
      return true;
  }
  return false;
}

inline std::vector<std::string> pointwise_samples() {
  std::vector<std::string> out;
  for (const auto& entry : rules::pointwise_table()) {
    for (const auto& name : split_text(std::string(entry.ops), ' ')) {
      const std::string op = "aten::" + name;
      if (!op_exists(op) || draws(op)) continue;
      for (const bool broadcast : {false, true}) {
        if (std::string line = guess_sample(op, broadcast); !line.empty()) out.push_back(line);
      }
    }
  }
  return out;
}

}  // namespace tessera::test
