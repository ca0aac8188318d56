#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "tessera/exec/program.h"

/// One collective of a program: pack and issue, then wait and unpack.
namespace tessera::exec {

/// The c10d operation of a Partial.
c10d::ReduceOp c10d_op(ReduceOp op);

struct InFlight {
  c10::intrusive_ptr<c10d::Work> work;
  at::Tensor send;                    // kept until the messages are sent
  at::Tensor receive;                 // flat, or the result itself
  at::Tensor result;                  // already contains the kept piece of an all_to_all
  at::ScalarType dtype = at::kFloat;  // of the result
  bool flips_sign = false;            // ReduceForm
};

struct CollectiveOptions {
  bool overwrite = false;  ///< the input may be used as the buffer of an all_reduce
  bool async = false;
};

InFlight start_collective(const Action& action, const at::Tensor& input,
                          const CollectiveOptions& options);

/// Returns the new local tensor.
at::Tensor finish_collective(const Action& action, InFlight in_flight);

bool is_complete(const InFlight& in_flight);

}  // namespace tessera::exec
