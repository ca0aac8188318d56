#include "tests/support/processes.h"

int main(int argc, char** argv) { return tessera::testing::test_main(argc, argv); }
