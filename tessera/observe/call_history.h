#pragma once

#include <cstdint>
#include <string>

namespace tessera::comm {

/// A number that is equal on all ranks of the collectives that follow on this thread, unless one of
/// them has called something that the others have not: a scope guard. Ranks with different numbers
/// do not match, as if they called different collectives. 0: nothing is compared.
///
///   const CallHistory history(take_reuse_mark(mesh));     exec/reuse_mark.h
class CallHistory {
 public:
  explicit CallHistory(uint64_t number) : outer_(current_) { current_ = number; }
  ~CallHistory() { current_ = outer_; }
  CallHistory(const CallHistory&) = delete;
  CallHistory& operator=(const CallHistory&) = delete;

  static uint64_t current() { return current_; }

 private:
  static inline constinit thread_local uint64_t current_ = 0;
  uint64_t outer_;
};

/// What an error reports for one rank whose number differs; "" for 0.
std::string history_note(uint64_t history);

}  // namespace tessera::comm
