#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

/// The C++ blocks of the documentation, as tools/doc_blocks.py writes them. The headers above
/// are those that fragments may use without including them.
namespace tessera_docs {

struct Block {
  std::string page;
  int line = 0;
  void (*run)() = nullptr;
  std::string expected;  ///< lines that it must print, in this order; "" if none
};

/// All registered blocks.
std::vector<Block>& blocks();

/// A static object of this type registers a block.
struct Registered {
  Registered(const char* page, int line, void (*run)(), const char* expected);
};

}  // namespace tessera_docs
