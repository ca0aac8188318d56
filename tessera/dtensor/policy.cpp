#include "tessera/dtensor/policy.h"

#include <utility>

namespace tessera {
namespace {

struct State {
  ImplicitComm comm = ImplicitComm::allow;
  bool strict = false;
  bool replicate = false;
};

State& state() {
  thread_local State instance;
  return instance;
}

}  // namespace

CommPolicy::CommPolicy(ImplicitComm policy) : outer_(std::exchange(state().comm, policy)) {}
CommPolicy::~CommPolicy() { state().comm = outer_; }
ImplicitComm CommPolicy::current() { return state().comm; }

StrictRules::StrictRules(bool strict) : outer_(std::exchange(state().strict, strict)) {}
StrictRules::~StrictRules() { state().strict = outer_; }
bool StrictRules::current() { return state().strict; }

ImplicitReplication::ImplicitReplication(bool on) : outer_(std::exchange(state().replicate, on)) {}
ImplicitReplication::~ImplicitReplication() { state().replicate = outer_; }
bool ImplicitReplication::current() { return state().replicate; }

}  // namespace tessera
