#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/exec/blocks.h"
#include "tessera/plan/plan.h"

/// A plan compiled for one rank: groups resolved, every copy and split computed. Every move runs in
/// the same three stages; copies are skipped where the data already has the required layout:
///
///   local tensor --pack--> send buffer --collective--> receive buffer --unpack--> new local tensor
///
///   S0 -> R   even             no pack, no unpack: gathered directly into the result
///   S0 -> R   [10] over 4      the last rank pads; the result is the buffer's first 10
///   S1 -> R                    no pack; unpack concatenates the columns
///   S0 -> S1                   pack extracts the columns, large ones while sending; the received
///                              rows are the result
namespace tessera::exec {

/// One step for one rank.
struct Action {
  plan::Move move{};
  std::shared_ptr<const comm::Group> group;  // null: no communication
  std::string axis;                          // the mesh axes, for records and errors
  std::vector<int64_t> in_shape;             // of the local tensors before and after
  std::vector<int64_t> out_shape;

  BlockCopy pack;
  BlockCopy unpack;
  bool packs = false;  // false: the input itself is the send buffer
  bool unpacks = false;
  int64_t send_numel = 0;
  int64_t receive_numel = 0;
  std::vector<int64_t> send_counts;  // all_to_all and transfer
  std::vector<int64_t> receive_counts;
  /// all_to_all: the piece that I keep is copied directly from the old local tensor to the new one,
  /// if it is at an end of both buffers, so that the other pieces stay contiguous.
  BlockCopy keep;
  bool copies_self = false;
  int64_t send_offset = 0;     // where the messages begin in the input, if it is the send buffer
  int64_t receive_offset = 0;  // and in the result, if it is the receive buffer

  ReduceOp reduce_op = ReduceOp::sum;
  int64_t divide_by = 1;    // after a sum, for averages
  int64_t multiply_by = 1;  // rescale
  bool keeps = true;        // keep_one: this rank keeps the value
  /// slice: where my part of each dim begins, if it is a contiguous range of every dim.
  std::optional<std::vector<int64_t>> starts;
};

class Program {
 public:
  explicit Program(std::vector<Action> actions) : actions_(std::move(actions)) {}

  const std::vector<Action>& actions() const { return actions_; }

 private:
  std::vector<Action> actions_;
};

/// Creates the required groups: every rank of the meshes must compile the same plan.
std::shared_ptr<const Program> compile(const plan::Plan& plan);

/// The program for the cheapest plan, from a cache shared by all threads.
std::shared_ptr<const Program> cached_program(const Sharding& from, const Sharding& to);

size_t cached_programs();
void clear_programs();

}  // namespace tessera::exec
