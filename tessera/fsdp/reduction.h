#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "tessera/fsdp/collectives.h"
#include "tessera/fsdp/data_mesh.h"
#include "tessera/fsdp/flat_layout.h"
#include "tessera/fsdp/step_log.h"

/// Gradients on their way: a reduce_scatter over the shard axis, then an all_reduce over the
/// replicate axis. Both run while the caller computes:
///
///   start()      the reduce_scatter is under way (without a shard axis, the all_reduce)
///   advance()    it has ended, and the all_reduce is under way
///   finish()     that has ended too
///
/// It may stop before the all_reduce: what it gives then is added to a later one (add_part).
namespace tessera::fsdp {

/// What gradients are divided by before and after they are summed. Before, because a sum of many in
/// a narrow type overflows.
struct DivideBy {
  double before = 1;
  double after = 1;
  bool operator==(const DivideBy&) const = default;
};

class Reduction {
 public:
  struct How {
    DivideBy divide_by;
    bool over_replicas = true;  ///< false: over the shard axis alone, and divided by nothing after
  };

  Reduction(std::shared_ptr<const FlatLayout> layout, const DataMesh& mesh,
            std::shared_ptr<const Collectives> collectives, How how, StepLog::Message message);

  /// Takes a parameter's whole gradient; what comes again is added to what came. Small ones are
  /// copied at once, large ones kept.
  void add(size_t param, const at::Tensor& gradient);
  bool has(size_t param) const { return taken_[param]; }
  /// This rank's part of what earlier reductions gave that stopped before replicas.
  void add_part(size_t param, at::Tensor shard);
  void add_zeros(size_t param, c10::Device device);  ///< nothing if it has a gradient
  bool over_replicas() const { return how_.over_replicas; }

  enum class Stage { under_way, ended };

  void start();
  Stage advance();  ///< ended: nothing is under way any more
  void finish();
  /// After finish(): this rank's part of a gradient that was added.
  at::Tensor shard(size_t param) const;
  /// Waits for messages under way; there is no result.
  void abandon();

 private:
  struct Part {
    size_t param;
    at::Tensor shard;
  };
  struct Input {
    at::Tensor flat;    // undefined where nothing was added
    bool mine = false;  // nobody else sees its memory
  };

  at::Tensor flat(int64_t elements, at::ScalarType dtype, c10::Device device) const;
  Input zeros(size_t slot, c10::Device device) const;
  void take(size_t param, const at::Tensor& gradient);
  void add_small(size_t param, const at::Tensor& gradient);
  void add_large(size_t param, const at::Tensor& gradient);
  void start_scatter();
  void end_scatter();
  void start_all_reduce();
  void wait();

  std::shared_ptr<const FlatLayout> layout_;
  DataMesh mesh_;
  std::shared_ptr<const Collectives> collectives_;
  How how_;
  std::vector<bool> taken_;
  std::vector<Input> inputs_;        // by slot
  std::vector<at::Tensor> outputs_;  // by slot
  std::vector<Part> parts_;
  WorkPtr work_;
  StepLog::Message message_;
  bool under_way_ = false;
  bool scatters_ = false;  // what is under way is the reduce_scatter
};

}  // namespace tessera::fsdp
