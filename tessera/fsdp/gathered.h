#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

#include "tessera/fsdp/collectives.h"
#include "tessera/fsdp/flat_layout.h"
#include "tessera/fsdp/step_log.h"

/// The whole parameters of a group while they are needed.
namespace tessera::fsdp {

/// Gathered bytes of one rank, counted from allocation until the memory is free again, whoever
/// still holds it.
struct GatheredBytes {
  std::atomic<int64_t> alive{0};
  std::atomic<int64_t> peak{0};
};

/// Where a gather goes and what it leaves a trace in.
struct GatherWay {
  const comm::Group& group;
  std::string_view axis;
  const Collectives& collectives;
  std::shared_ptr<GatheredBytes> bytes;
  MessageTimes times;
};

class Gathered {
 public:
  /// Starts the all_gather of `sent`, this rank's part of each slot of the layout.
  Gathered(std::shared_ptr<const FlatLayout> layout, std::vector<at::Tensor> sent, GatherWay way,
           bool async);

  /// The parameters are there when it returns.
  void wait();
  const at::Tensor& whole(size_t param) const { return wholes_[param]; }
  /// Copies of one of `parts` equal parts of each slot: what a rank of a group of so many sends.
  std::vector<at::Tensor> parts_of_slots(int part, int parts, const Collectives& collectives,
                                         const std::shared_ptr<GatheredBytes>& bytes) const;

 private:
  std::shared_ptr<const FlatLayout> layout_;
  at::Tensor memory_;
  std::vector<at::Tensor> sent_;
  std::vector<at::Tensor> slots_;
  std::vector<at::Tensor> wholes_;
  WorkPtr work_;
  MessageTimes times_;
  bool there_ = false;
};

}  // namespace tessera::fsdp
