// All tests above the torch line are one program.
#include <gtest/gtest.h>

#include "tests/support_pure/tests_of_file.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return tessera::test::take_file_flag(argc, argv) ? RUN_ALL_TESTS() : 2;
}
