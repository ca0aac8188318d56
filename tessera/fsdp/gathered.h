#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <optional>
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
  StepLog::Message message;
};

/// Its memory comes with each gather and goes with the release. The tensors over it are made once,
/// unless somebody keeps one of them: then that one keeps its memory, and the next gather has new
/// ones.
class Gathered {
 public:
  enum class Stage { released, under_way, there };

  explicit Gathered(std::shared_ptr<const FlatLayout> layout) : layout_(std::move(layout)) {}

  Stage stage() const { return stage_; }
  /// Starts the all_gather of `sent`, this rank's part of each slot of the layout. If it throws,
  /// nothing is gathered; so with wait().
  void start(std::vector<at::Tensor> sent, const GatherWay& way, bool async);
  /// The parameters are there when it returns, if they were under way.
  void wait();
  /// Messages that still run write to the memory: it waits for them.
  void release();

  bool is_held() const { return !is_only_holder(); }  ///< by others, while it is there

  const at::Tensor& whole(size_t param) const { return views_->wholes[param]; }
  /// Copies of one of `parts` equal parts of each slot: what a rank of a group of so many sends.
  std::vector<at::Tensor> parts_of_slots(int part, int parts, const Collectives& collectives,
                                         const std::shared_ptr<GatheredBytes>& bytes) const;

 private:
  /// Messages have handles of their own, which let go of the memory when they have ended: whoever
  /// ran one may hold its tensors a moment longer.
  struct Views {
    at::Tensor memory;
    std::vector<at::Tensor> wholes;
    at::Tensor lent;
    std::vector<at::Tensor> slots;
  };

  bool fits(const at::Tensor& memory) const;
  bool is_only_holder() const;
  void make_views(const at::Tensor& memory);
  void fail();

  std::shared_ptr<const FlatLayout> layout_;
  std::optional<Views> views_;
  std::vector<at::Tensor> sent_;
  WorkPtr work_;
  StepLog::Message message_;
  Stage stage_ = Stage::released;
};

}  // namespace tessera::fsdp
