#include "tessera/dtensor/policy.h"

#include <memory>
#include <string_view>
#include <type_traits>

namespace tessera {
namespace {

struct Policies {
  ImplicitComm comm = ImplicitComm::allow;
  bool strict = false;
  bool replicate = false;
};

struct Carried final : c10::DebugInfoBase {
  explicit Carried(const Policies& policies) : policies(policies) {}
  Policies policies;
};

constexpr std::string_view kName = "tessera policies";

/// A slot in the thread-local state that libtorch carries to the threads of a backward. Identified
/// by an address; before libtorch 2.13 by a one-byte number, of which libtorch uses the first few.
template <typename Kind>
Kind make_kind() {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(0x74);
  } else {
    return Kind(&kName);
  }
}

c10::DebugInfoKind kind() { return make_kind<c10::DebugInfoKind>(); }

Policies current() {
  const auto* carried = static_cast<const Carried*>(c10::ThreadLocalDebugInfo::get(kind()));
  return carried != nullptr ? carried->policies : Policies{};
}

template <typename Value>
std::shared_ptr<Carried> current_with(Value Policies::*field, Value value) {
  Policies policies = current();
  policies.*field = value;
  return std::make_shared<Carried>(policies);
}

}  // namespace

CommPolicy::CommPolicy(ImplicitComm policy)
    : scope_(kind(), current_with(&Policies::comm, policy)) {}
ImplicitComm CommPolicy::current() { return tessera::current().comm; }

StrictRules::StrictRules(bool strict) : scope_(kind(), current_with(&Policies::strict, strict)) {}
bool StrictRules::current() { return tessera::current().strict; }

ImplicitReplication::ImplicitReplication(bool on)
    : scope_(kind(), current_with(&Policies::replicate, on)) {}
bool ImplicitReplication::current() { return tessera::current().replicate; }

}  // namespace tessera
