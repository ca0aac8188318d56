#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/collective/call_matching.h"
#include "tessera/fsdp/buffers/collectives.h"
#include "tessera/fsdp/buffers/flat_layout.h"
#include "tessera/fsdp/buffers/step_log.h"

/// The full parameters of a bucket between gather and release.
namespace tessera::fsdp {

/// Added to the number of a group that is gathered, which ranks compare.
inline constexpr uint64_t kGatherMark = comm::kGatherHistory;

/// Gathered bytes of one rank, counted from allocation until the memory is actually freed,
/// including memory that other references keep alive.
struct GatheredBytes {
  std::atomic<int64_t> alive{0};
  std::atomic<int64_t> peak{0};
};

/// The group, functions and accounting that a gather uses.
struct GatherContext {
  const comm::Group& group;
  std::string_view axis;
  const Collectives& collectives;
  std::shared_ptr<GatheredBytes> bytes;
  StepLog::Message message;
};

/// Its memory is allocated by each gather and freed by release(). The tensors that view it are
/// created once and reused. If one of them is still referenced elsewhere at release, it keeps the
/// memory, and the next gather creates new tensors.
class Gathered {
 public:
  enum class Stage { released, under_way, there };

  explicit Gathered(std::shared_ptr<const FlatLayout> layout) : layout_(std::move(layout)) {}

  Stage stage() const { return stage_; }
  /// Starts the all_gather of `sent`, this rank's piece of each slot of the layout. If start() or
  /// wait() throws, nothing is gathered.
  void start(std::vector<at::Tensor> sent, const GatherContext& way, bool async);
  /// The same on an axis of one rank: `pieces` of this rank, by slot, are converted to the layout's
  /// dtype, or moved to the device.
  void copy(const std::vector<std::vector<at::Tensor>>& pieces, c10::Device device,
            const Collectives& collectives, const std::shared_ptr<GatheredBytes>& bytes);
  /// Blocks until a gather in flight, if any, is complete.
  void wait();
  /// Waits for messages in flight first, because they write to the memory.
  void release();

  bool is_held() const { return !is_only_holder(); }  ///< by other references, while it is gathered

  const at::Tensor& whole(size_t param) const { return views_->wholes[param]; }
  /// Copies one of `parts` equal parts of each slot: this rank's input to a gather among `parts`
  /// ranks.
  std::vector<at::Tensor> parts_of_slots(int part, int parts, const Collectives& collectives,
                                         const std::shared_ptr<GatheredBytes>& bytes) const;

 private:
  /// The tensors of a gather in flight. Messages use separate handles that are dropped on
  /// completion, because the backend may reference its tensors a little longer.
  struct Views {
    at::Tensor memory;
    std::vector<at::Tensor> wholes;
    at::Tensor lent;
    std::vector<at::Tensor> slots;
  };

  bool fits(const at::Tensor& memory) const;
  bool is_only_holder() const;
  void make_views(const at::Tensor& memory);
  void copy_out();
  void attach(const at::Tensor& memory, const std::shared_ptr<GatheredBytes>& bytes);
  void fail();

  std::shared_ptr<const FlatLayout> layout_;
  std::optional<Views> views_;
  std::vector<at::Tensor> sent_;
  WorkPtr work_;
  StepLog::Message message_;
  Stage stage_ = Stage::released;
};

}  // namespace tessera::fsdp
