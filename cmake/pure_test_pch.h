// The precompiled header of the tests above the torch line.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "cmake/pure_pch.h"
