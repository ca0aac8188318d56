// The precompiled header of the bindings: pybind11 and libtorch, no header of this project. ccache
// takes one whose comments changed for the same, and GCC then does not know the file again.
#pragma once

#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>
