#include "tessera/rules/registry/registry.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "tessera/base/errors.h"
#include "tessera/rules/code/code_rules.h"
#include "tessera/rules/expand.h"
#include "tessera/rules/registry/derive.h"
#include "tessera/rules/tables/tables.h"

namespace tessera::rules {
namespace {

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};

/// Rules are parsed on first use: most programs use few ops. They are never removed, so pointers
/// stay valid.
class Registry {
 public:
  Registry() {
    for (const auto table : all_tables()) {
      for (const auto& line : table) {
        std::string_view ops = line.ops;
        while (!ops.empty()) {
          const size_t end = std::min(ops.find(' '), ops.size());
          if (end > 0)
            lines_.insert_or_assign(std::string("aten::").append(ops.substr(0, end)), line.rule);
          ops.remove_prefix(std::min(end + 1, ops.size()));
        }
      }
    }
    for (auto& rule : code_rules()) keep(std::make_shared<Rule>(std::move(rule)));
  }

  const Rule* find(std::string_view op) {
    std::lock_guard lock(mutex_);
    return find_locked(op);
  }

  void add(Rule rule) {
    require(!rule.op.empty(), "a rule needs the name of its op");
    std::lock_guard lock(mutex_);
    keep(std::make_shared<Rule>(std::move(rule)));
    derived_.clear();
  }

  std::vector<std::string> ops() {
    std::lock_guard lock(mutex_);
    std::set<std::string> names;
    for (const auto& [name, line] : lines_) names.insert(name);
    for (const auto& [name, rule] : rules_) names.insert(name);
    return {names.begin(), names.end()};
  }

 private:
  void keep(std::shared_ptr<const Rule> rule) {
    all_.push_back(rule);
    rules_.insert_or_assign(rule->op, all_.back().get());
  }

  const Rule* own(std::string_view op) {
    if (const auto it = rules_.find(op); it != rules_.end()) return it->second;
    const auto line = lines_.find(op);
    if (line == lines_.end()) return nullptr;
    Rule rule = make_rule(op, line->second);
    rule.in_place = is_in_place(op);
    keep(std::make_shared<Rule>(std::move(rule)));
    return rules_.find(op)->second;
  }

  const Rule* find_locked(std::string_view op) {
    if (const Rule* rule = own(op)) return rule;
    if (const auto it = derived_.find(op); it != derived_.end()) return it->second;
    const Rule* made = nullptr;
    if (auto rule = derive(op, [this](std::string_view base) { return find_locked(base); })) {
      all_.push_back(std::make_shared<Rule>(std::move(*rule)));
      made = all_.back().get();
    }
    derived_.emplace(op, made);
    return made;
  }

  std::mutex mutex_;
  std::unordered_map<std::string, std::string_view, TextHash, std::equal_to<>> lines_;
  std::unordered_map<std::string, const Rule*, TextHash, std::equal_to<>> rules_;
  std::unordered_map<std::string, const Rule*, TextHash, std::equal_to<>> derived_;
  std::vector<std::shared_ptr<const Rule>> all_;
};

Registry& registry() {
  static auto* made = new Registry();  // never destroyed, see mesh_table()
  return *made;
}

}  // namespace

const Rule* find_rule(std::string_view op) { return registry().find(op); }
void register_rule(std::string_view op, std::string_view notation) {
  register_rule(make_rule(op, notation));
}
void register_rule(Rule rule) {
  registry().add(std::move(rule));
  next_generation();
}
std::vector<std::string> ruled_ops() { return registry().ops(); }

}  // namespace tessera::rules
