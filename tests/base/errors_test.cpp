#include "tessera/base/errors.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace errors_test {

using test::expect_error;

template <typename... Kinds>
constexpr bool all_are_errors = (std::is_base_of_v<Error, Kinds> && ...);

static_assert(std::is_base_of_v<std::runtime_error, Error>);
static_assert(all_are_errors<InvalidArgument, NotSupported, PeerError, InternalError>);

TEST(Errors, RequireThrowsTheCallersMistakeWithThePartsJoined) {
  expect_error<InvalidArgument>([] { require(false, "Shard(", 3, ") of ", 2, " dims"); },
                                {"Shard(3) of 2 dims"});
  require(true, "nothing");
}

TEST(Errors, RequireMakesNoTextWhenAllIsWell) {
  struct Costly {
    int* made;
    std::string to_text() const { return std::to_string(++*made); }
  };
  int made = 0;
  require(true, Costly{&made}, [&] { return ++made; });
  EXPECT_EQ(made, 0);
  expect_error<InvalidArgument>([&] { require(false, Costly{&made}, [&] { return ++made; }); },
                                {"12"});
}

TEST(Errors, EnsureThrowsOurBugAndNamesTheLineThatAsked) {
  const auto fails = [] { ensure(false, "two plus two"); };
  const int line = __LINE__ - 1;
  expect_error<InternalError>(
      fails, {"two plus two", "a bug in tessera", join_text("errors_test.cpp:", line)});
  ensure(true, "nothing");
}

TEST(Errors, KindsDoNotCatchEachOther) {
  const auto is_peer_error = [](const auto& thrown) {
    try {
      throw thrown;
    } catch (const PeerError&) {
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  EXPECT_TRUE(is_peer_error(PeerError("link")));
  EXPECT_FALSE(is_peer_error(InvalidArgument("call")));
  EXPECT_FALSE(is_peer_error(NotSupported("build")));
  EXPECT_FALSE(is_peer_error(InternalError("bug")));
}

}  // namespace errors_test
}  // namespace tessera
