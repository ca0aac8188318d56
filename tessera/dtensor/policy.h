#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>

#include "tessera/base/api.h"

/// Thread-local policies, each set by a scope guard. They propagate to work that the thread starts
/// elsewhere: libtorch carries them to the device threads on which autograd runs a backward()
/// called inside the guard. Guards nest.
namespace tessera {

/// What happens when an op needs communication that the caller did not write.
///
///   allow    the op communicates
///   warn     the op communicates and warns, once per op
///   forbid   the op throws NotSupported, naming the `redistribute` to write, and sends nothing
///
/// Communication that the caller requested is not implicit: redistribute, full_tensor, the halo
/// exchange of a convolution whose spatial dim the caller sharded.
enum class ImplicitComm : uint8_t { allow, warn, forbid };

/// Sets the policy during its lifetime; the innermost guard applies.
///
///   CommPolicy quiet(ImplicitComm::forbid);
class TESSERA_API CommPolicy {
 public:
  explicit CommPolicy(ImplicitComm policy);

  static ImplicitComm current();

 private:
  c10::DebugInfoGuard scope_;
};

/// While it is alive, an op without a sharding rule throws instead of running on replicated inputs.
class TESSERA_API StrictRules {
 public:
  explicit StrictRules(bool strict = true);

  static bool current();

 private:
  c10::DebugInfoGuard scope_;
};

/// While it is alive, plain tensors mixed with sharded ones are treated as replicated (PyTorch's
/// implicit_replication). Otherwise only tensors of one element are.
class TESSERA_API ImplicitReplication {
 public:
  explicit ImplicitReplication(bool on = true);

  static bool current();

 private:
  c10::DebugInfoGuard scope_;
};

}  // namespace tessera
