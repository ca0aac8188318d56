#pragma once

#include "tessera/sharding/sharding.h"

namespace tessera::plan {

/// The simplest sharding under which every rank holds the same elements in the same order. Steps of
/// a plan connect canonical shardings, so differences in notation only cost nothing:
///
///   any placement on an axis of one rank     R
///   S0[3,3,1] of [7] over 3                  S0
///   SS0(2),S0 of [8] over 2x2                S0#1,S0#0   (the form in which dp is innermost)
Sharding canonical(const Sharding& sharding);

}  // namespace tessera::plan
