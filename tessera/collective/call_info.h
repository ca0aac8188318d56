#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/collective/collective.h"
#include "tessera/collective/group_info.h"

/// A collective call without its data: enough to record it, to name it in an error and to compare
/// it with the calls of other ranks. Roots and peers are group indexes, as in c10d.
///
/// Created for every collective: does not allocate for a few tensors of a few dims.
namespace tessera::comm {

/// Shapes concatenated in one buffer: ndim, sizes, ndim, sizes.
class TESSERA_API ShapeList {
 public:
  void add(c10::IntArrayRef sizes);
  int count() const { return count_; }
  std::vector<std::vector<int64_t>> to_vectors() const;
  /// Calls `visit(span<const int64_t>)` for each shape.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (size_t at = 0; at < packed_.size(); at += static_cast<size_t>(packed_[at]) + 1) {
      visit(std::span<const int64_t>(packed_.data() + at + 1, static_cast<size_t>(packed_[at])));
    }
  }
  bool operator==(const ShapeList& other) const { return packed_ == other.packed_; }
  /// "2x3", "2x3,4", "3 tensors of 2x3", "nothing".
  std::string to_text() const;

 private:
  c10::SmallVector<int64_t, 8> packed_;
  int count_ = 0;
};

struct TESSERA_API CallInfo {
  Collective what = Collective::barrier;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  ///< of the first tensor
  int8_t reduce = -1;                                  ///< a c10d RedOpType; -1: no reduction
  bool async = false;
  bool in_place = false;   ///< no separate outputs
  bool lazy_view = false;  ///< a tensor has a lazy conjugate or negative bit
  int root = -1;
  int peer = -1;  ///< of send and recv
  int tag = 0;
  ShapeList in;
  ShapeList out;
  c10::SmallVector<int64_t, 4> splits_in;  ///< all_to_all_single; empty: even
  c10::SmallVector<int64_t, 4> splits_out;
  int64_t bytes_in = 0;
  int64_t bytes_out = 0;

  CommOp op() const { return comm_op(what); }
  /// "all_reduce (sum) of 4 float32", "broadcast from rank 2 of 2x3 int64"
  std::string to_text(const GroupInfo& group) const;
};

/// A hash that is equal on all ranks of a matching call: op, dtype, reduction, root and element
/// count. Pairs of ranks may disagree on all_to_all's pieces and still have equal digests.
TESSERA_API uint32_t digest(const CallInfo& call);

/// Serialization, so that other ranks can read it.
TESSERA_API std::string encode(const CallInfo& call);
TESSERA_API std::optional<CallInfo> decode(std::string_view text);

/// One rank's call, as seen by another.
struct TESSERA_API RankCall {
  int index = 0;          ///< in the group
  uint64_t sequence = 0;  ///< number of the call within the group
  CallInfo call;
  std::string note{};  ///< of the CallSite; compared as text
};

/// Serialization of a call with its note, and the reverse; nullopt if the text is something else.
TESSERA_API std::string post(const CallInfo& call, std::string_view note);
TESSERA_API std::optional<RankCall> read_post(int index, uint64_t sequence, std::string_view text);

/// The first two ranks whose calls of the same sequence number do not match, and why: "rank 0 calls
/// all_reduce (sum) of 4 float32, rank 2 calls barrier"; nullopt if all match. Stricter than the
/// wire format: equal element counts with different shapes do not match.
TESSERA_API std::optional<std::string> first_difference(std::span<const RankCall> calls,
                                                        const GroupInfo& group);

TESSERA_API std::string dtype_text(c10::ScalarType dtype);  ///< "float32"

}  // namespace tessera::comm
