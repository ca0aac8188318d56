// The precompiled header of the tests, benchmarks and examples below the torch line: that of the
// rooms, all ATen functions and the test framework.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cmake/torch_pch.h"
