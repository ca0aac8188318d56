#pragma once

#include <cstdint>
#include <string>

namespace tessera::comm {

/// A history number counts what ranks left out because they kept a copy, unless it has one of these
/// bits. This one: it stands for the parameters of which a rank reduces gradients.
inline constexpr uint64_t kGradientHistory = uint64_t{1} << 63;
/// It is the number of a fully_shard group, whose parameters a rank gathers.
inline constexpr uint64_t kGatherHistory = uint64_t{1} << 62;

/// Why ranks of one collective have different history numbers, and what to do about it.
std::string history_mistake(uint64_t history);

/// A backend that compares what its ranks call, so that ranks in different calls never take each
/// other's bytes. Gloo's marks its messages, and calls that do not match block until the timeout
/// (transport/gloo.h describes what happens otherwise); that of thread ranks compares the calls.
class CallMatching {
 public:
  virtual ~CallMatching() = default;

  /// Sets the digest() of the next collective, and a number that all its ranks must have in common.
  virtual void announce(uint32_t digest, uint64_t history) = 0;
  /// Whether calls that do not match block until the timeout, so that a rank that waits has to
  /// check what the others do. Thread ranks do not: they find mismatches and deadlocks at once.
  virtual bool blocks_on_mismatch() const = 0;
};

}  // namespace tessera::comm
