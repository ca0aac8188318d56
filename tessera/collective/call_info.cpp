#include "tessera/collective/call_info.h"

#include <charconv>
#include <sstream>

#include "tessera/base/shape.h"
#include "tessera/base/text.h"

namespace tessera::comm {
namespace {

uint32_t mixed(uint32_t hash, uint64_t value) {
  const uint64_t h = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  return static_cast<uint32_t>(h >> 32) ^ static_cast<uint32_t>(h);
}

/// The side whose shapes are equal on all ranks; null where there is none.
const ShapeList* common_side(const CallInfo& call) {
  switch (call.op()) {
    case CommOp::reduce_scatter:
    case CommOp::scatter:
      return &call.out;
    case CommOp::all_to_all:
    case CommOp::send:
    case CommOp::recv:
    case CommOp::barrier:
      return nullptr;
    default:
      return &call.in;
  }
}

std::string rank_text(const GroupInfo& group, int index) {
  const bool known = index >= 0 && static_cast<size_t>(index) < group.ranks.size();
  return known ? join_text("rank ", group.ranks[static_cast<size_t>(index)])
               : join_text("index ", index);
}

/// Elements that an all_to_all moves from or to index `peer`; -1 where the call cannot say.
int64_t elements_with(const ShapeList& shapes, std::span<const int64_t> splits, int peer,
                      int group_size) {
  int64_t found = -1;
  int at = 0;
  shapes.for_each([&](std::span<const int64_t> shape) {
    if (shapes.count() > 1 && at++ == peer) found = numel_of(shape);
    if (shapes.count() != 1) return;
    if (splits.empty()) {
      found = numel_of(shape) / group_size;
    } else if (static_cast<size_t>(peer) < splits.size()) {
      const int64_t rows = shape.empty() ? 1 : shape[0];
      found = rows == 0 ? 0 : numel_of(shape) / rows * splits[static_cast<size_t>(peer)];
    }
  });
  return found;
}

std::optional<std::string> pair_difference(const RankCall& from, const RankCall& to,
                                           const GroupInfo& group) {
  const int size = static_cast<int>(group.ranks.size());
  const auto& a = from.call;
  const auto& b = to.call;
  const int64_t given =
      elements_with(a.in, {a.splits_in.data(), a.splits_in.size()}, to.index, size);
  const int64_t taken =
      elements_with(b.out, {b.splits_out.data(), b.splits_out.size()}, from.index, size);
  if (given == taken || given < 0 || taken < 0) return std::nullopt;
  return join_text(rank_text(group, from.index), " gives ", given, " elements to ",
                   rank_text(group, to.index), ", which expects ", taken, " from it");
}

std::optional<std::string> difference(const RankCall& a, const RankCall& b,
                                      const GroupInfo& group) {
  const ShapeList* side_a = common_side(a.call);
  const ShapeList* side_b = common_side(b.call);
  const bool same = a.call.what == b.call.what && a.call.reduce == b.call.reduce &&
                    a.call.root == b.call.root && a.call.dtype == b.call.dtype &&
                    (side_a == nullptr || *side_a == *side_b);
  if (!same) {
    return join_text(rank_text(group, a.index), " calls ", a.call.to_text(group), ", ",
                     rank_text(group, b.index), " calls ", b.call.to_text(group));
  }
  if (a.note != b.note) {
    return join_text(a.call.to_text(group), ": ", rank_text(group, a.index), " says \"", a.note,
                     "\", ", rank_text(group, b.index), " says \"", b.note, "\"");
  }
  return std::nullopt;
}

void put(std::ostream& out, const ShapeList& shapes) {
  out << shapes.count() << ' ';
  shapes.for_each([&](std::span<const int64_t> shape) {
    out << shape.size() << ' ';
    for (const int64_t size : shape) out << size << ' ';
  });
}

template <typename Row>
void put_row(std::ostream& out, const Row& row) {
  out << row.size() << ' ';
  for (const int64_t x : row) out << x << ' ';
}

/// Numbers with spaces between them, as encode() writes them. They come from another process: text
/// that is no number, and a count that cannot be right, end the reading.
class NumberReader {
 public:
  explicit NumberReader(std::string_view text) : text_(text) {}

  bool ok() const { return ok_; }

  /// 0 once a number could not be read.
  int64_t take() {
    while (!text_.empty() && text_.front() == ' ') text_.remove_prefix(1);
    int64_t number = 0;
    const char* const end = text_.data() + text_.size();
    const auto [at, error] = std::from_chars(text_.data(), end, number);
    ok_ = ok_ && error == std::errc();
    if (!ok_) return 0;
    text_.remove_prefix(static_cast<size_t>(at - text_.data()));
    return number;
  }

  template <typename Row>
  void take_row(Row& row) {
    constexpr int64_t kMost = 1 << 20;
    const int64_t n = take();
    ok_ = ok_ && n >= 0 && n <= kMost;
    for (int64_t i = 0; i < n && ok_; ++i) row.push_back(take());
  }

  void take_shapes(ShapeList& shapes) {
    const int64_t n = take();
    for (int64_t i = 0; i < n && ok_; ++i) {
      std::vector<int64_t> shape;
      take_row(shape);
      shapes.add(shape);
    }
  }

 private:
  std::string_view text_;
  bool ok_ = true;
};

}  // namespace

void ShapeList::add(c10::IntArrayRef sizes) {
  packed_.push_back(static_cast<int64_t>(sizes.size()));
  packed_.append(sizes.begin(), sizes.end());
  ++count_;
}

std::vector<std::vector<int64_t>> ShapeList::to_vectors() const {
  std::vector<std::vector<int64_t>> out;
  for_each([&](std::span<const int64_t> shape) { out.emplace_back(shape.begin(), shape.end()); });
  return out;
}

std::string ShapeList::to_text() const {
  if (count_ == 0) return "nothing";
  std::string out;
  std::string first;
  bool all_equal = true;
  for_each([&](std::span<const int64_t> shape) {
    const std::string text = shape_text(shape);
    if (out.empty()) {
      first = text;
    } else {
      out += ',';
    }
    all_equal = all_equal && text == first;
    out += text;
  });
  return all_equal && count_ > 1 ? join_text(count_, " tensors of ", first) : out;
}

std::string CallInfo::to_text(const GroupInfo& group) const {
  std::string text(collective_name(what));
  if (reduce >= 0) {
    text += join_text(" (", reduce_op_name(static_cast<c10d::ReduceOp::RedOpType>(reduce)), ")");
  }
  if (root >= 0) {
    const bool to_root = op() == CommOp::gather || op() == CommOp::reduce;
    text += join_text(to_root ? " to " : " from ", rank_text(group, root));
  }
  if (peer >= 0) {
    text += join_text(op() == CommOp::send ? " to " : " from ", rank_text(group, peer));
  }
  if (op() == CommOp::send || op() == CommOp::recv) text += join_text(" with tag ", tag);
  if (in.count() + out.count() == 0) return text;
  text += join_text(" of ", (in.count() > 0 ? in : out).to_text());
  if (in.count() > 0 && out.count() > 0) text += join_text(" -> ", out.to_text());
  text += join_text(" ", dtype_text(dtype));
  if (!splits_in.empty() || !splits_out.empty()) {
    const auto row = [](const auto& s) { return std::span<const int64_t>(s.data(), s.size()); };
    text += join_text(", splits ", list_text(row(splits_in)), " -> ", list_text(row(splits_out)));
  }
  return text;
}

uint32_t digest(const CallInfo& call) {
  uint32_t hash = mixed(0x7e55e7a, static_cast<uint64_t>(call.what) << 32 |
                                       static_cast<uint64_t>(call.dtype) << 16 |
                                       static_cast<uint64_t>(static_cast<uint8_t>(call.reduce)));
  hash = mixed(hash, static_cast<uint64_t>(call.root));
  if (const ShapeList* side = common_side(call)) {
    side->for_each([&](std::span<const int64_t> shape) {
      hash = mixed(hash, static_cast<uint64_t>(numel_of(shape)));
    });
  }
  return hash;
}

std::string encode(const CallInfo& call) {
  std::ostringstream out;
  out << static_cast<int>(call.what) << ' ' << static_cast<int>(call.dtype) << ' '
      << static_cast<int>(call.reduce) << ' ' << call.root << ' ';
  put(out, call.in);
  put(out, call.out);
  put_row(out, call.splits_in);
  put_row(out, call.splits_out);
  return out.str();
}

std::optional<CallInfo> decode(std::string_view text) {
  NumberReader in(text);
  CallInfo call;
  const int64_t what = in.take();
  if (what < 0 || what > static_cast<int64_t>(Collective::barrier)) return std::nullopt;
  call.what = static_cast<Collective>(what);
  call.dtype = static_cast<c10::ScalarType>(in.take());
  call.reduce = static_cast<int8_t>(in.take());
  call.root = static_cast<int>(in.take());
  in.take_shapes(call.in);
  in.take_shapes(call.out);
  in.take_row(call.splits_in);
  in.take_row(call.splits_out);
  if (!in.ok()) return std::nullopt;
  return call;
}

std::string post(const CallInfo& call, std::string_view note) {
  return join_text(encode(call), "\n", note);
}

std::optional<RankCall> read_post(int index, uint64_t sequence, std::string_view text) {
  const size_t line_end = text.find('\n');
  if (line_end == std::string_view::npos) return std::nullopt;
  auto call = decode(text.substr(0, line_end));
  if (!call) return std::nullopt;
  return RankCall{index, sequence, std::move(*call), std::string(text.substr(line_end + 1))};
}

std::optional<std::string> first_difference(std::span<const RankCall> calls,
                                            const GroupInfo& group) {
  for (size_t j = 1; j < calls.size(); ++j) {
    for (size_t i = 0; i < j; ++i) {
      const RankCall& a = calls[i];
      const RankCall& b = calls[j];
      if (a.sequence != b.sequence) continue;
      if (auto found = difference(a, b, group)) return found;
      if (a.call.op() != CommOp::all_to_all) break;  // a stands for all that came before b
      if (auto found = pair_difference(a, b, group)) return found;
      if (auto found = pair_difference(b, a, group)) return found;
    }
  }
  return std::nullopt;
}

std::string dtype_text(c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Undefined) return "-";
  return std::string(c10::getDtypeNames(dtype).first);
}

}  // namespace tessera::comm
