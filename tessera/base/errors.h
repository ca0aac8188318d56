#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tessera/base/api.h"
#include "tessera/base/text.h"

/// Errors by kind. The type identifies who can fix it:
///
///   InvalidArgument   the caller's mistake: the message says what was asked, what was found, what
///                     to do
///   NotSupported      a valid request that this library, build or machine cannot serve
///   PeerError         another rank or a connection failed; this rank is fine
///   InternalError     a bug of the library: the message ends with the source line
///
/// Expected outcomes are return values, not errors. The library never aborts or exits.
namespace tessera {

class TESSERA_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class TESSERA_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

class TESSERA_API NotSupported : public Error {
 public:
  using Error::Error;
};

class TESSERA_API PeerError : public Error {
 public:
  using Error::Error;
};

class TESSERA_API InternalError : public Error {
 public:
  using Error::Error;
};

/// Throws InvalidArgument with the parts joined unless `ok`:
///   require(dim < ndim, "Shard(", dim, ") of a tensor with ", ndim, " dims");
/// Parts are formatted only when it throws: pass `mesh`, not `mesh.to_text()`, and expensive text
/// as a lambda, `[&] { return shape_text(shape); }`.
template <typename... Parts>
inline void require(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]] {
    throw InvalidArgument(join_text(parts...));
  }
}

/// Throws InternalError with the source location unless `ok`. For invariants of the code.
TESSERA_API void ensure(bool ok, std::string_view what,
                        std::source_location where = std::source_location::current());

}  // namespace tessera
