#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <cstdlib>
#include <map>
#include <set>

#include "tessera/rules/rule.h"

/// How much of ATen has a rule. TESSERA_SHOW_UNRULED lists the rest.
namespace tessera::test {
namespace {

std::string kind_of(const c10::OperatorName& name) {
  const std::string op = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
  if (rules::find_rule(op) != nullptr) return "ruled";
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  if (handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    return "composite";
  return "unruled";
}

TEST(CoverageOfAten, CountsWhatIsRuled) {
  std::map<std::string, std::vector<std::string>> by_kind;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::") || !c10::Dispatcher::singleton().findSchema(name))
      continue;
    by_kind[kind_of(name)].push_back(name.name.substr(6) +
                                     (name.overload_name.empty() ? "" : "." + name.overload_name));
  }
  for (auto& [kind, ops] : by_kind) {
    std::printf("%s: %zu overloads\n", kind.c_str(), ops.size());
    if (kind == "unruled" && std::getenv("TESSERA_SHOW_UNRULED") != nullptr) {
      std::ranges::sort(ops);
      for (const auto& op : ops) std::printf("%s ", op.c_str());
      std::printf("\n");
    }
  }
  EXPECT_GE(by_kind["ruled"].size(), 1'300U);
}

#if TORCH_VERSION_MINOR >= 13  // older ones lack some ops that have rules
/// A rule whose name is misspelt would never be found.
TEST(CoverageOfAten, EveryRuleIsOfAnOpThatExists) {
  for (const auto& op : rules::ruled_ops()) {
    const size_t dot = op.find('.');
    const auto found = c10::Dispatcher::singleton().findSchema(
        {op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1)});
    EXPECT_TRUE(found.has_value()) << op;
  }
}
#endif

}  // namespace
}  // namespace tessera::test
