#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <ostream>
#include <source_location>
#include <string>
#include <string_view>

#include "tessera/base/errors.h"

namespace tessera {

/// Lets failures of EXPECT_EQ show meshes, placements and shardings as their text.
template <HasText T>
void PrintTo(const T& value, std::ostream* out) {
  *out << value.to_text();
}

namespace test {

/// Expects that `f` throws an E whose message holds every part:
///   expect_error<InvalidArgument>([&] { mesh.axis("pp"); }, {"pp", "dp=2,tp=4"});
template <typename E, typename F>
void expect_error(const F& f, std::initializer_list<std::string_view> parts,
                  std::source_location where = std::source_location::current()) {
  const auto line = static_cast<int>(where.line());
  try {
    f();
  } catch (const E& e) {
    const std::string message = e.what();
    for (const auto part : parts) {
      if (message.find(part) == std::string::npos) {
        ADD_FAILURE_AT(where.file_name(), line)
            << "the message\n  " << message << "\ndoes not say\n  " << part;
      }
    }
    return;
  } catch (const std::exception& e) {
    ADD_FAILURE_AT(where.file_name(), line) << "threw another kind of error: " << e.what();
    return;
  }
  ADD_FAILURE_AT(where.file_name(), line) << "did not throw";
}

}  // namespace test
}  // namespace tessera
