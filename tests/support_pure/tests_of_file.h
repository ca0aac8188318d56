#pragma once

namespace tessera::test {

/// A test program holds the tests of a room; ctest runs them file by file:
///
///   build/tests/test_dtensor_ops --file=tests/dtensor/ops/topk_test.cpp
///
/// Sets gtest's filter to the tests of that file, if the flag is given. Call it after
/// InitGoogleTest, which removes its own flags. False, with a message, for other arguments and for
/// a file without tests.
bool take_file_flag(int argc, char** argv);

}  // namespace tessera::test
