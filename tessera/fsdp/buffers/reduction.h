#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "tessera/fsdp/buffers/collectives.h"
#include "tessera/fsdp/buffers/data_mesh.h"
#include "tessera/fsdp/buffers/flat_layout.h"
#include "tessera/fsdp/buffers/step_log.h"

/// A gradient reduction in flight: a reduce_scatter over the shard axis, then an all_reduce over
/// the replicate axis. Both overlap with computation:
///
///   start()      starts the reduce_scatter (without a shard axis, the all_reduce)
///   advance()    waits for it and starts the all_reduce
///   finish()     waits for that as well
///
/// On one rank nothing is sent or copied: a gradient that has no other user is the result.
/// It may stop before the all_reduce: its result is then added to a later reduction (add_part).
namespace tessera::fsdp {

/// Divisors applied before and after the sum. Dividing before avoids overflow of large sums in a
/// narrow dtype.
struct DivideBy {
  double before = 1;
  double after = 1;
  bool operator==(const DivideBy&) const = default;
};

class Reduction {
 public:
  struct How {
    DivideBy divide_by;
    bool over_replicas = true;  ///< false: shard axis only, without the division after the sum
  };

  Reduction(std::shared_ptr<const FlatLayout> layout, const DataMesh& mesh,
            std::shared_ptr<const Collectives> collectives, How how, StepLog::Message message);

  /// Adds a parameter's full gradient; repeated calls accumulate. Small gradients are copied
  /// immediately, large ones are referenced.
  void add(size_t param, const at::Tensor& gradient);
  bool has(size_t param) const { return taken_[param]; }
  /// Adds this rank's part of the result of an earlier reduction that stopped before the replicas.
  void add_part(size_t param, at::Tensor shard);
  void add_zeros(size_t param, c10::Device device);  ///< no effect if it has a gradient
  bool over_replicas() const { return how_.over_replicas; }

  enum class Stage { under_way, ended };

  void start();
  Stage advance();  ///< ended: nothing is in flight any more
  void finish();
  /// After finish(): this rank's part of a gradient that was added.
  at::Tensor shard(size_t param) const;
  /// Waits for messages in flight and discards the result.
  void abandon();

 private:
  struct Part {
    size_t param;
    at::Tensor shard;
  };
  struct Input {
    at::Tensor flat;    // undefined if nothing was added
    bool mine = false;  // the memory is referenced here only
  };

  void add_alone(size_t param, const at::Tensor& gradient);
  /// The parameter's whole gradient, in memory that nodes still to run do not read.
  at::Tensor& writable_whole(size_t param);
  at::Tensor flat(int64_t elements, at::ScalarType dtype, c10::Device device) const;
  Input zeros(size_t slot, c10::Device device) const;
  void take(size_t param, const at::Tensor& gradient);
  void add_small(size_t param, const at::Tensor& gradient);
  void copy_pending();
  std::string note_of_taken() const;
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
  bool alone_;                      // no axis to reduce over: gradients are not copied to slots
  std::vector<at::Tensor> wholes_;  // by parameter, if alone
  std::vector<bool> shared_;        // by parameter: a tensor beside the whole has its memory
  std::unordered_set<const void*> memory_of_wholes_;
  std::vector<Input> inputs_;  // by slot
  Tensors pending_to_;         // copies into slots that are left for one call
  Tensors pending_from_;
  std::vector<at::Tensor> outputs_;  // by slot
  std::vector<Part> parts_;
  WorkPtr work_;
  StepLog::Message message_;
  bool under_way_ = false;
  bool scatters_ = false;  // the reduce_scatter is in flight
};

}  // namespace tessera::fsdp
