#include "tessera/dtensor/dispatch/rule_handler.h"

#include <map>
#include <mutex>
#include <string>

#include "tessera/rules/rule.h"

namespace tessera::dtensor {
namespace {

struct RuleHandlers {
  std::mutex mutex;
  std::map<std::string, RuleHandler, std::less<>> by_name;
};

RuleHandlers& rule_handlers() {
  static auto* instance = new RuleHandlers();  // kernels may run during process exit
  return *instance;
}

}  // namespace

RuleHandler rule_handler(std::string_view name) {
  std::lock_guard lock(rule_handlers().mutex);
  const auto it = rule_handlers().by_name.find(name);
  return it == rule_handlers().by_name.end() ? nullptr : it->second;
}

void set_rule_handler(std::string_view name, RuleHandler handler) {
  {
    std::lock_guard lock(rule_handlers().mutex);
    rule_handlers().by_name.insert_or_assign(std::string(name), handler);
  }
  rules::enable_handler(name);
}

}  // namespace tessera::dtensor
