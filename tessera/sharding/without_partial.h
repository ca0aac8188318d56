#pragma once

#include "tessera/sharding/sharding.h"

namespace tessera {

/// The same with Partial replaced by Replicate: the sharding of a gradient, or of reduced values.
Sharding without_partial(const Sharding& sharding);

}  // namespace tessera
