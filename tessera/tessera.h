#pragma once

/// Everything a program needs.
#include "tessera/base/errors.h"
#include "tessera/comm/failure.h"
#include "tessera/comm/fake.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dispatch/own_ops.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/factories.h"
#include "tessera/dtensor/local_map.h"
#include "tessera/dtensor/policy.h"
#include "tessera/exec/redistribute.h"
#include "tessera/fsdp/compute_dtype.h"
#include "tessera/fsdp/convert.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/fsdp/overlap.h"
#include "tessera/fsdp/sharded_module.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/module/clip_grad.h"
#include "tessera/module/distribute_module.h"
#include "tessera/module/meta_init.h"
#include "tessera/module/state.h"
#include "tessera/module/to_empty.h"
#include "tessera/observe/checked.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tessera/observe/trace.h"
#include "tessera/plan/plan.h"
#include "tessera/rules/registry/registry.h"
#include "tessera/sharding/boxes.h"
#include "tessera/sharding/local_shape.h"
#include "tessera/sharding/sharding.h"

namespace tessera {
using comm::init_device_mesh;
using comm::manual_seed;
using comm::run_ranks;
}  // namespace tessera
