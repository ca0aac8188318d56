#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tessera/rules/number.h"
#include "tessera/sharding/sharding.h"

/// What to do for one op on inputs sharded in one way: made once, looked up ever after.
namespace tessera::dtensor {

/// An op to run in another's place, and where its arguments come from.
struct Replacement {
  c10::OperatorHandle op;
  /// By argument: that of the original call with this index, or (-1) the value.
  std::vector<std::pair<int, c10::IValue>> args;
};

struct Decision;
struct OpEntry;

/// Does on local tensors what a row of a rule names; see rule_handlers.h.
using RuleHandler = void (*)(const OpEntry& entry, const c10::OperatorHandle& op,
                             const Decision& decision, std::vector<c10::IValue>& stack);

/// A result whose rule leaves sizes open: dims of size -1 are whole, the local result has them.
struct OpenResult {
  std::vector<Placement> placements;
  std::vector<int64_t> shape;
  std::vector<int> order;
};

/// A result that the decision foretells in full. Refers to its sharding.
struct KnownResult {
  explicit KnownResult(const Sharding& sharding);
  /// A view lies as it lies; a fresh result may lie otherwise than predicted.
  bool fits(const at::Tensor& local, bool is_view) const;

  at::IntArrayRef shape;
  at::IntArrayRef stride;
  at::IntArrayRef local_shape;
  at::IntArrayRef local_stride;
  at::ScalarType dtype;
};

struct Decision {
  /// By operand (tensors of the arguments, lists flattened): the sharding it must have; undefined
  /// where it is taken as it is.
  std::vector<Sharding> operands;
  bool moves = false;  ///< some operand must be redistributed
  /// Operands that the op writes to and that lie elsewhere than the op needs them: what it wrote is
  /// moved back into them.
  std::vector<size_t> write_back;
  /// By result, lists flattened; undefined where the local result tells (replicated).
  std::vector<Sharding> results;
  DeviceMesh mesh;
  /// By result of a view: its first element, counted from its base's; empty where all are 0.
  std::vector<int64_t> view_offsets;
  /// Arguments that hold global sizes or indexes, with their local values.
  std::vector<std::pair<int, c10::IValue>> local_args;
  /// Factors for the local results; empty: none. Zero makes zeros of whatever the op gave.
  std::vector<double> scale;
  /// By result; empty where none is open.
  std::vector<OpenResult> open;
  /// Runs in place of the op, on the local tensors.
  RuleHandler handler = nullptr;
  bool reduces = false;  ///< the handler combines the ranks' results
  /// Another op to run on the local tensors.
  std::optional<Replacement> instead;
  bool by_mesh = false;     ///< lists of tensors of several meshes: one call for each
  bool replicates = false;  ///< no rule: runs on replicated inputs
  mutable std::atomic<bool> warned{false};  ///< of the cost of that
  /// Nothing but the op itself on the local tensors: what typed_kernel.h can do.
  bool direct = false;
  std::vector<KnownResult> known;  ///< by result, of a direct decision
  /// The one list of sizes among local_args, if that is all there is.
  struct {
    int at = -1;
    std::vector<int64_t> sizes;
  } direct_sizes;
};

/// Sets the storage offset that `view`, result `index`, has in one whole tensor; `base` is that of
/// the tensor that it is a view of.
inline void set_view_offset(const Decision& decision, size_t index, int64_t base,
                            const at::Tensor& view) {
  const int64_t offset =
      index < decision.view_offsets.size() ? base + decision.view_offsets[index] : base;
  if (offset != 0) view.unsafeGetTensorImpl()->set_storage_offset(offset);
}

/// Sets `direct` of a finished decision.
void find_if_direct(const OpEntry& entry, Decision& decision);

/// A decision, and what it asked about the numbers of its call.
struct Decided {
  std::unique_ptr<Decision> decision;
  rules::NumberQuestions asked;
};

/// The words that a decision depends on: shardings by address, static arguments by value, and
/// answers to what decisions for this op have asked about numbers (rules/number.h). The numbers
/// themselves are beside the words, so that kernels need not know which of them matter.
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
  /// A number, by its 64 bits; its type is a word.
  void add_number(uint64_t bits) {
    if (number_count_ >= kInlineNumbers) [[unlikely]]
      return spill_number(bits);
    inline_numbers_[number_count_++] = bits;
  }
  /// Makes the answers to these questions the last words, in the place of earlier answers.
  void answer(std::span<const rules::NumberQuestion> questions);

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

  std::array<uint64_t, kInline> inline_;  // first `count_` are set
  std::vector<uint64_t> spilled_;
  size_t count_ = 0;
  uint64_t hash_ = 0;
  std::array<uint64_t, kInlineNumbers> inline_numbers_;  // first `number_count_` are set
  std::vector<uint64_t> spilled_numbers_;
  size_t number_count_ = 0;
  struct {
    size_t count;
    uint64_t hash;
  } unanswered_{};  // the words without answers, once there were any
};

/// The decisions of the calling thread for one op. Threads share nothing, so nothing is locked;
/// ranks that are threads have meshes, and so keys, of their own anyway.
///
/// A decision holds every sharding of its key, so the addresses in the key stay taken.
class DecisionCache {
 public:
  /// nullptr if there is none. Completes the key by the answers to what the op's decisions ask.
  static const Decision* find(uint32_t op, DecisionKey& key);
  static const Decision* put(uint32_t op, DecisionKey& key, Decided decided,
                             std::vector<Sharding> keep);
};

struct DecisionStats {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t entries = 0;
  uint64_t bytes = 0;  ///< of the entries, about; a thread that has 64 MiB of them starts over
};

/// Summed over all threads that live.
DecisionStats decision_stats();
/// Every thread drops its decisions before it looks for the next one.
void clear_decisions();

}  // namespace tessera::dtensor
