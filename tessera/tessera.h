#pragma once

/// Everything a program needs.
#include "tessera/base/errors.h"
#include "tessera/checkpoint/async_save.h"
#include "tessera/checkpoint/chunks.h"
#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/optimizer_state.h"
#include "tessera/checkpoint/save.h"
#include "tessera/checkpoint/save_safetensors.h"
#include "tessera/checkpoint/steps.h"
#include "tessera/comm/expect.h"
#include "tessera/comm/fake.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/comm/recorder.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/trace.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/distribute_module.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/factories.h"
#include "tessera/dtensor/local_map.h"
#include "tessera/dtensor/own_ops.h"
#include "tessera/dtensor/policy.h"
#include "tessera/exec/redistribute.h"
#include "tessera/fsdp/clip_grad.h"
#include "tessera/fsdp/compute_dtype.h"
#include "tessera/fsdp/convert.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/fsdp/meta_init.h"
#include "tessera/fsdp/overlap.h"
#include "tessera/fsdp/sharded_module.h"
#include "tessera/fsdp/state.h"
#include "tessera/fsdp/to_empty.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/plan/plan.h"
#include "tessera/sharding/boxes.h"
#include "tessera/sharding/local_shape.h"
#include "tessera/sharding/sharding.h"

namespace tessera {
using comm::init_device_mesh;
using comm::manual_seed;
using comm::run_ranks;
}  // namespace tessera
