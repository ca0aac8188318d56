#pragma once

#include <exception>
#include <string>

/// An error passed from the rank where it occurred to other ranks. Each of them throws its own
/// exception object: one object rethrown on many threads would be shared.
namespace tessera::comm {

struct Failure {
  enum class Kind { invalid_argument, not_supported, peer, internal, other };

  Kind kind = Kind::other;
  std::string message;

  /// Kind and message of any exception.
  static Failure of(const std::exception_ptr& error);

  /// Throws the tessera error of this kind; Kind::other is a plain tessera::Error.
  [[noreturn]] void raise() const;
  std::exception_ptr exception() const;

  /// Throws the tessera error of this kind with `original` nested in it (std::rethrow_if_nested).
  [[noreturn]] void raise_with(const std::exception_ptr& original) const;
};

}  // namespace tessera::comm
