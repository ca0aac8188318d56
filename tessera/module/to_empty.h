#pragma once

#include <c10/core/Device.h>

#include "tessera/base/api.h"

namespace torch::nn {
class Module;
}

/// Modules too large for one device are created on meta, where tensors have a shape but no memory,
/// then sharded, and only then initialized, each rank its part:
///
///   Model model = [&] { MetaInit meta; return Model(config); }();   // meta_init.h
///   fully_shard(*model, mesh);                               // still on meta
///   to_empty(*model, at::kCPU);                              // memory for this rank's shards
///   manual_seed(7);
///   for (auto& p : model->parameters()) torch::nn::init::normal_(p, 0, 0.02);
///
/// Random values depend on the seed and on an element's index in the global tensor (random numbers,
/// docs/concepts.md), so they are the same on any number of ranks.
namespace tessera {

/// Allocates uninitialized memory on the device for the module's parameters and buffers that are on
/// meta; others are unchanged. Groups of fully_shard with a parameter in the module are allocated
/// as a whole. For plain and sharded modules.
TESSERA_API void to_empty(torch::nn::Module& module, c10::Device device);

}  // namespace tessera
