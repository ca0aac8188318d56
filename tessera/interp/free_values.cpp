#include "tessera/interp/free_values.h"

namespace tessera::interp {
namespace {

template <typename Visit>
void each_use(ArgSource& arg, const Visit& visit) {
  if (arg.kind == ArgSource::Kind::value) visit(arg.value, &arg);
  for (const auto& item : arg.items) {
    if (item.value) visit(*item.value, nullptr);
  }
}

/// Of one instruction: how often it reads a value, and the plain argument that does.
struct Use {
  ValueIndex value;
  ArgSource* plain;
  int count;
};

std::vector<Use> uses_of(Instruction& instruction) {
  std::vector<Use> uses;
  for (auto& arg : instruction.args) {
    each_use(arg, [&](ValueIndex value, ArgSource* plain) {
      for (auto& use : uses) {
        if (use.value != value) continue;
        ++use.count;
        return;
      }
      uses.push_back({value, plain, 1});
    });
  }
  return uses;
}

}  // namespace

void mark_last_uses(Code& code) {
  // From the end to the start: the first use that is met is the last one.
  std::vector<bool> live(code.values, false);
  for (auto& output : code.outputs) {
    each_use(output, [&](ValueIndex value, ArgSource*) { live[value] = true; });
  }
  for (const auto& input : code.inputs) {
    if (input) live[*input] = true;
  }
  for (auto instruction = code.instructions.rbegin(); instruction != code.instructions.rend();
       ++instruction) {
    for (auto& result : instruction->results) {
      for (auto& value : result.values) {
        if (value != kUnused && !live[value]) value = kUnused;
      }
    }
    for (const auto& [value, plain, count] : uses_of(*instruction)) {
      if (live[value]) continue;
      live[value] = true;
      if (plain != nullptr && count == 1) {
        plain->last_use = true;
      } else {
        instruction->frees.push_back(value);
      }
    }
  }
}

}  // namespace tessera::interp
