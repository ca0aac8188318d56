#include "tessera/threads/thread_failure.h"

#include <c10/util/Exception.h>

#include "tessera/base/errors.h"

namespace tessera::comm {
namespace {

template <typename Throw>
[[noreturn]] void raise_as(Failure::Kind kind, const std::string& message, const Throw& raise) {
  switch (kind) {
    case Failure::Kind::invalid_argument:
      raise(InvalidArgument(message));
      break;
    case Failure::Kind::not_supported:
      raise(NotSupported(message));
      break;
    case Failure::Kind::peer:
      raise(PeerError(message));
      break;
    case Failure::Kind::internal:
      raise(InternalError(message));
      break;
    case Failure::Kind::other:
      break;
  }
  raise(Error(message));
  std::terminate();  // not reached: `raise` throws
}

}  // namespace

Failure Failure::of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument& e) {
    return {Kind::invalid_argument, e.what()};
  } catch (const NotSupported& e) {
    return {Kind::not_supported, e.what()};
  } catch (const PeerError& e) {
    return {Kind::peer, e.what()};
  } catch (const InternalError& e) {
    return {Kind::internal, e.what()};
  } catch (const c10::Error& e) {
    return {Kind::other, e.what_without_backtrace()};
  } catch (const std::exception& e) {
    return {Kind::other, e.what()};
  } catch (...) {
    return {Kind::other, "an exception that is not a std::exception"};
  }
}

void Failure::raise() const {
  raise_as(kind, message, [](const auto& error) { throw error; });
}

std::exception_ptr Failure::exception() const {
  try {
    raise();
  } catch (...) {
    return std::current_exception();
  }
}

void Failure::raise_with(const std::exception_ptr& original) const {
  try {
    std::rethrow_exception(original);
  } catch (...) {
    raise_as(kind, message, [](const auto& error) { std::throw_with_nested(error); });
  }
}

}  // namespace tessera::comm
