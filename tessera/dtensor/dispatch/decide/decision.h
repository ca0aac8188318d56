#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/dtensor/dispatch/decide/local_views.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/rules/number.h"
#include "tessera/rules/rule.h"
#include "tessera/sharding/sharding.h"

/// How to run one op for one combination of input shardings. Computed once, then cached.
namespace tessera::dtensor {

/// An op to run instead of the called one, and the source of its arguments.
struct Replacement {
  c10::OperatorHandle op;
  /// Per argument: the index of an argument of the original call, or -1 and a value.
  std::vector<std::pair<int, c10::IValue>> args;
};

struct OpEntry;
struct KernelCall;

/// A result whose rule leaves sizes open: dims of size -1 are not sharded, and the local result
/// determines them.
struct OpenResult {
  std::vector<Placement> placements;
  std::vector<int64_t> shape;
  std::vector<int> order;
};

/// A result whose metadata the decision predicts completely. References its sharding.
struct KnownResult {
  /// A result that nothing fits: one that its call does not want, or that is replicated with the
  /// metadata of the local one.
  KnownResult() : local_shape(kNoSize) {}
  explicit KnownResult(const Sharding& sharding);
  /// Whether the local result has the predicted metadata. A view has the strides that it has; a new
  /// result may differ from the predicted ones.
  bool fits(const at::Tensor& local, bool is_view) const {
    const c10::TensorImpl& impl = *local.unsafeGetTensorImpl();
    if (impl.dtype() != dtype || impl.dim() != static_cast<int64_t>(local_shape.size())) {
      return false;
    }
    const at::IntArrayRef sizes = impl.sizes();
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] != local_shape[d]) return false;
    }
    return is_view ? !local.is_conj() && !local.is_neg() : is_laid_out_as(local, local_stride);
  }
  /// wrap() of a local result that fits.
  at::Tensor wrap(at::Tensor local, const Sharding& sharding) const {
    const c10::Device device = local.device();
    if (!outline.is_on(device)) [[unlikely]]
      outline = TensorOutline(sharding, device);
    return outline.wrap(std::move(local), sharding);
  }

  static constexpr int64_t kNoSize[] = {-1};

  at::IntArrayRef local_shape;
  at::IntArrayRef local_stride;
  caffe2::TypeMeta dtype;
  mutable TensorOutline outline;  ///< made for the first result; decisions belong to one thread
};

struct Decision {
  /// Per operand (tensors of the arguments, lists flattened): the required sharding; undefined if
  /// any is accepted.
  std::vector<Sharding> operands;
  bool moves = false;  ///< some operand must be redistributed
  /// Operands that the op writes to but whose placements differ from what it needs: the written
  /// values are redistributed back into them.
  std::vector<size_t> write_back;
  /// Per result, lists flattened; undefined if taken from the local result (replicated).
  std::vector<Sharding> results;
  /// Per result, or empty: the same with the strides that its kernel chose (wrap_as_laid_out).
  /// Decisions belong to one thread.
  mutable std::vector<Sharding> laid_out;
  /// Per result, or empty: what the last local result completed, for one that is open or undefined.
  mutable std::vector<Sharding> completed;
  DeviceMesh mesh;
  /// Per result of a view op: the offset of its first element from that of the base; empty if all
  /// are 0.
  std::vector<int64_t> view_offsets;
  /// Arguments that are global sizes or indexes, with their local values.
  std::vector<std::pair<int, c10::IValue>> local_args;
  /// Factors for the local results; empty: none. A factor of 0 overwrites the result with zeros.
  std::vector<double> scale;
  /// Per result; empty if none is open.
  std::vector<OpenResult> open;
  /// The kernel of the chosen rows, which runs instead of the op on the local tensors
  /// (row_kernel.h).
  const std::function<void(const KernelCall&)>* kernel = nullptr;
  rules::KernelComm comm = rules::KernelComm::none;  ///< of that kernel
  /// Another op to run on the local tensors.
  std::optional<Replacement> instead;
  bool by_mesh = false;                     ///< tensor lists on several meshes: one call per mesh
  bool replicates = false;                  ///< runs on replicated inputs, by no rule
  bool lacks_rule = false;                  ///< replicates because no rule could decide
  mutable std::atomic<bool> warned{false};  ///< about the cost of that
  /// Only the op itself runs, on the local tensors, so dtensor/kernels/typed_kernel.h can handle
  /// it.
  bool direct = false;
  std::vector<KnownResult> known;  ///< per result of a direct decision
  mutable LocalViews local_views;  ///< of the last call of a direct view
  /// The only list of sizes in local_args, if there is nothing else in it.
  struct {
    int at = -1;
    std::vector<int64_t> sizes;
  } direct_sizes;
};

inline int64_t offset_in_bytes(const at::Tensor& tensor) {
  return tensor.storage_offset() * static_cast<int64_t>(tensor.dtype().itemsize());
}

/// Sets the storage offset that `view`, result `index`, would have in an unsharded tensor; `bytes`
/// is the offset in bytes of the tensor that it views, whose elements may have another size.
inline void set_view_offset(const Decision& decision, size_t index, int64_t bytes,
                            const at::Tensor& view) {
  const int64_t base = bytes / static_cast<int64_t>(view.dtype().itemsize());
  const int64_t offset =
      index < decision.view_offsets.size() ? base + decision.view_offsets[index] : base;
  if (offset != 0) view.unsafeGetTensorImpl()->set_storage_offset(offset);
}

/// Sets `direct` of a finished decision.
void find_if_direct(const OpEntry& entry, Decision& decision);

/// A decision, and what it queried about the numeric arguments of its call.
struct Decided {
  std::unique_ptr<Decision> decision;
  rules::NumberQueries asked;
};

/// The words that a decision depends on: shardings by address, static arguments by value, and the
/// answers to the queries about numbers that decisions for this op have made (rules/number.h). The
/// numbers themselves are stored separately, so kernels need not know which of them matter.
class DecisionKey {
 public:
  void add(uint64_t word) {
    hash_ = (hash_ ^ word) * 0x9fb21c651e98df25ULL;
    hash_ ^= hash_ >> 32;
    if (count_ >= kInline) [[unlikely]]
      return spill(word);
    inline_[count_++] = word;
  }
  void add(const void* pointer) { add(reinterpret_cast<uint64_t>(pointer)); }
  /// Makes room for that many more words.
  void reserve(size_t words) {
    if (count_ + words > kInline) spilled_.reserve(spilled_.size() + words);
  }
  /// Adds a number by its 64 bits; its type is a word.
  void add_number(uint64_t bits) {
    if (number_count_ >= kInlineNumbers) [[unlikely]]
      return spill_number(bits);
    inline_numbers_[number_count_++] = bits;
  }
  /// Replaces the trailing answers by the answers to these questions.
  void answer(std::span<const rules::NumberQuery> questions);

  uint64_t hash() const { return hash_; }
  size_t size() const { return count_; }
  uint64_t word(size_t i) const { return i < kInline ? inline_[i] : spilled_[i - kInline]; }
  bool equals(std::span<const uint64_t> words) const {
    if (words.size() != count_) return false;
    const size_t held = std::min(count_, kInline);
    return std::equal(inline_.begin(), inline_.begin() + held, words.begin()) &&
           std::equal(spilled_.begin(), spilled_.end(), words.begin() + static_cast<int64_t>(held));
  }
  std::vector<uint64_t> to_vector() const {
    std::vector<uint64_t> out(count_);
    for (size_t i = 0; i < count_; ++i) out[i] = word(i);
    return out;
  }

 private:
  static constexpr size_t kInline = 40;
  static constexpr size_t kInlineNumbers = 8;

  void spill(uint64_t word);
  void spill_number(uint64_t bits);
  uint64_t number(size_t i) const;

  std::array<uint64_t, kInline> inline_;  // the first `count_` are set
  std::vector<uint64_t> spilled_;
  size_t count_ = 0;
  uint64_t hash_ = 0;
  std::array<uint64_t, kInlineNumbers> inline_numbers_;  // the first `number_count_` are set
  std::vector<uint64_t> spilled_numbers_;
  size_t number_count_ = 0;
  struct {
    size_t count;
    uint64_t hash;
  } unanswered_{};  // the words without answers, once answers were added
};

/// The decisions of the calling thread for one op. Nothing is shared between threads, so there are
/// no locks; ranks that run as threads have different meshes, and so different keys.
///
/// A decision references every sharding of its key, so the addresses in the key cannot be reused.
class DecisionCache {
 public:
  /// Returns nullptr if there is none. Appends to the key the answers that the op's decisions
  /// query.
  static const Decision* find(uint32_t op, DecisionKey& key);
  static const Decision* put(uint32_t op, DecisionKey& key, Decided decided,
                             std::vector<Sharding> keep);
};

struct DecisionStats {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t entries = 0;
  uint64_t bytes = 0;  ///< approximate; a thread clears its cache at 64 MiB
};

/// Summed over all live threads.
DecisionStats decision_stats();
/// Every thread drops its decisions before its next look-up.
void clear_decisions();

}  // namespace tessera::dtensor
