#pragma once

#include <cstdint>

namespace tessera {

/// What happens when an op needs communication that the caller did not write.
///
///   allow    it happens
///   warn     it happens, and each op says so once
///   forbid   the op throws NotSupported with the `redistribute` to write, before anything moves
/// What the caller asked for is not implicit: redistribute, full_tensor, the halos of a convolution
/// whose spatial dim the caller cut.
enum class ImplicitComm : uint8_t { allow, warn, forbid };

/// Sets the policy for the calling thread while it lives. Guards nest; the innermost counts.
///
///   CommPolicy quiet(ImplicitComm::forbid);
class CommPolicy {
 public:
  explicit CommPolicy(ImplicitComm policy);
  ~CommPolicy();
  CommPolicy(const CommPolicy&) = delete;
  CommPolicy& operator=(const CommPolicy&) = delete;

  static ImplicitComm current();

 private:
  ImplicitComm outer_;
};

/// While it lives, an op that has no sharding rule throws instead of running on replicated inputs.
class StrictRules {
 public:
  explicit StrictRules(bool strict = true);
  ~StrictRules();
  StrictRules(const StrictRules&) = delete;
  StrictRules& operator=(const StrictRules&) = delete;

  static bool current();

 private:
  bool outer_;
};

/// While it lives, plain tensors among sharded ones are taken as replicated (PyTorch's
/// implicit_replication). Without it only tensors of one element are.
class ImplicitReplication {
 public:
  explicit ImplicitReplication(bool on = true);
  ~ImplicitReplication();
  ImplicitReplication(const ImplicitReplication&) = delete;
  ImplicitReplication& operator=(const ImplicitReplication&) = delete;

  static bool current();

 private:
  bool outer_;
};

}  // namespace tessera
