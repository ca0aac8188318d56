#pragma once

#include <c10/core/Device.h>

namespace torch::nn {
class Module;
}

/// Modules too large for one device are made on meta, where tensors have a shape and no memory,
/// then sharded, and only then filled, each rank its part:
///
///   Model model = [&] { MetaInit meta; return Model(config); }();   // meta_init.h
///   fully_shard(*model, mesh);                               // still on meta
///   to_empty(*model, at::kCPU);                              // memory for this rank's shards
///   manual_seed(7);
///   for (auto& p : model->parameters()) torch::nn::init::normal_(p, 0, 0.02);
///
/// Random values hang on the seed and on an element's place in the whole tensor (random numbers,
/// docs/concepts.md): they are the same on any number of ranks.
namespace tessera {

/// Gives the parameters and buffers of the module that are on meta memory on the device, with
/// values yet to be written; others keep theirs. Groups of fully_shard that have a parameter in the
/// module get it whole. Works for plain modules and for all sharded ones.
void to_empty(torch::nn::Module& module, c10::Device device);

}  // namespace tessera
