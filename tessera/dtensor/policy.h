#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>

/// Policies of the calling thread, each set by a guard while it lives. They hold in what the thread
/// starts elsewhere too: libtorch carries them to the device threads on which autograd runs a
/// backward() inside the guard. Guards nest.
namespace tessera {

/// What happens when an op needs communication that the caller did not write.
///
///   allow    it happens
///   warn     it happens, and each op says so once
///   forbid   the op throws NotSupported with the `redistribute` to write, before anything moves
/// What the caller asked for is not implicit: redistribute, full_tensor, the halos of a convolution
/// whose spatial dim the caller cut.
enum class ImplicitComm : uint8_t { allow, warn, forbid };

/// Sets the policy while it lives; the innermost guard counts.
///
///   CommPolicy quiet(ImplicitComm::forbid);
class CommPolicy {
 public:
  explicit CommPolicy(ImplicitComm policy);

  static ImplicitComm current();

 private:
  c10::DebugInfoGuard scope_;
};

/// While it lives, an op that has no sharding rule throws instead of running on replicated inputs.
class StrictRules {
 public:
  explicit StrictRules(bool strict = true);

  static bool current();

 private:
  c10::DebugInfoGuard scope_;
};

/// While it lives, plain tensors among sharded ones are taken as replicated (PyTorch's
/// implicit_replication). Without it only tensors of one element are.
class ImplicitReplication {
 public:
  explicit ImplicitReplication(bool on = true);

  static bool current();

 private:
  c10::DebugInfoGuard scope_;
};

}  // namespace tessera
