#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/exec/blocks.h"
#include "tessera/plan/plan.h"

/// A plan made ready for one rank: groups resolved, every copy and split computed. Every move runs
/// in the same three parts, and the copies are skipped where the data already lies as needed:
///
///   local tensor --pack--> send buffer --collective--> receive buffer --unpack--> new local tensor
///
///   S0 -> R   even             no pack, no unpack: gathered straight into the result
///   S0 -> R   [10] over 4      the last rank pads; the result is the buffer's first 10
///   S1 -> R                    no pack; unpack puts the columns side by side
///   S0 -> S1                   pack cuts the columns, large ones as they are sent; received rows
///                              are the result
namespace tessera::exec {

/// One step for one rank.
struct Action {
  plan::Move move{};
  std::shared_ptr<const comm::Group> group;  // null: nobody to talk to
  std::string axis;                          // names the mesh axes in records and errors
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
  /// all_to_all: what I keep goes straight from the old local tensor to the new one, where both its
  /// places are at an end of the buffers, so that the messages beside it stay in one piece.
  BlockCopy keep;
  bool copies_self = false;
  int64_t send_offset = 0;     // where the messages begin in the input, if it is the send buffer
  int64_t receive_offset = 0;  // and in the result, if it is the receive buffer

  ReduceOp reduce_op = ReduceOp::sum;
  int64_t divide_by = 1;    // after a sum, for averages
  int64_t multiply_by = 1;  // rescale
  bool keeps = true;        // keep_one: am I the one
  /// slice: where my part of each dim begins, if it is one stretch of every dim.
  std::optional<std::vector<int64_t>> starts;
};

class Program {
 public:
  explicit Program(std::vector<Action> actions) : actions_(std::move(actions)) {}

  const std::vector<Action>& actions() const { return actions_; }

 private:
  std::vector<Action> actions_;
};

/// Makes the groups that it needs: every rank of the meshes compiles the same plan.
std::shared_ptr<const Program> compile(const plan::Plan& plan);

/// The program for the cheapest plan, from a cache that all threads share.
std::shared_ptr<const Program> cached_program(const Sharding& from, const Sharding& to);

void clear_program_cache();
size_t cached_programs();

}  // namespace tessera::exec
