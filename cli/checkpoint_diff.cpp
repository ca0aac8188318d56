#include "cli/checkpoint_diff.h"

#include <ATen/ATen.h>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/checkpoint/stored/stored_box.h"
#include "tessera/dcp/check.h"
#include "tessera/files/pickle/plain_pickle.h"

namespace tessera::cli {
namespace {

using checkpoint::dtype_of;
using checkpoint::read_box;
using checkpoint::StoredState;

std::string kind_text(const dcp::Entry& entry) {
  const auto* tensor = std::get_if<dcp::TensorEntry>(&entry);
  if (tensor == nullptr) return "a value";
  return join_text(tensor->dtype ? dtype_name(*tensor->dtype) : "?", " ",
                   shape_text(tensor->shape));
}

/// The same for two NaN.
std::string pickled(const files::PlainValue& value) {
  files::PickleWriter out;
  write(out, value);
  return out.finish();
}

/// The differences of two tensors so far.
struct TensorDifference {
  int64_t count = 0;
  double largest = 0;

  void add(const at::Tensor& a, const at::Tensor& b, double tolerance) {
    const at::ScalarType wide = a.is_complex() ? at::kComplexDouble : at::kDouble;
    const at::Tensor x = a.to(wide);
    const at::Tensor y = b.to(wide);
    at::Tensor gap = (x - y).abs();
    if (a.is_floating_point() || a.is_complex()) {
      const at::Tensor both_nan = x.isnan().logical_and(y.isnan());
      gap.masked_fill_(both_nan.logical_or(x.eq(y)), 0);
    } else {  // whole numbers beyond 2^53 that differ may have one double
      const at::Tensor same = a.to(at::kLong).eq(b.to(at::kLong));
      gap.clamp_min_(1).masked_fill_(same, 0);
    }
    const at::Tensor differs = gap.le(tolerance).logical_not();  // a NaN on one side differs too
    const auto found = differs.sum().item<int64_t>();
    if (found == 0) return;
    count += found;
    const auto here = gap.max().item<double>();
    if (!(here <= largest)) largest = here;  // NaN stays
  }
};

class Comparison {
 public:
  Comparison(StoredState& a, StoredState& b, double tolerance,
             const std::function<void(uint64_t, uint64_t)>& on_progress)
      : a_(a), b_(b), tolerance_(tolerance), on_progress_(on_progress) {
    for (const auto& [name, entry] : a.metadata().entries) {
      const auto* tensor = std::get_if<dcp::TensorEntry>(&entry);
      if (tensor != nullptr && tensor->dtype) {
        total_ += static_cast<uint64_t>(numel_of(tensor->shape) * dtype_bytes(*tensor->dtype));
      }
    }
  }

  std::string entries(const std::string& name, const dcp::Entry& in_a, const dcp::Entry& in_b) {
    if (kind_text(in_a) != kind_text(in_b)) {
      return join_text(kind_text(in_a), " and ", kind_text(in_b));
    }
    if (const auto* value = std::get_if<dcp::ValueEntry>(&in_a)) {
      return values(name, *value, std::get<dcp::ValueEntry>(in_b));
    }
    return tensors(name, std::get<dcp::TensorEntry>(in_a), std::get<dcp::TensorEntry>(in_b));
  }

 private:
  std::string values(const std::string& name, const dcp::ValueEntry& in_a,
                     const dcp::ValueEntry& in_b) {
    try {
      const auto first = a_.read_value(name, in_a);
      const auto second = b_.read_value(name, in_b);
      const bool same = first == second || pickled(first) == pickled(second);
      return same ? "" : join_text(first, " and ", second);
    } catch (const Error& error) {  // of a class of Python's
      return join_text("cannot be compared: ", error.what());
    }
  }

  std::string tensors(const std::string& name, const dcp::TensorEntry& in_a,
                      const dcp::TensorEntry& in_b) {
    dcp::check_chunks(name, in_a, a_.description().string());
    dcp::check_chunks(name, in_b, b_.description().string());
    const int64_t numel = numel_of(in_a.shape);
    if (numel == 0) return "";
    const DType type_a = dtype_of(a_, name, in_a);
    const DType type_b = dtype_of(b_, name, in_b);
    TensorDifference difference;
    const Box whole{std::vector<int64_t>(in_a.shape.size(), 0), in_a.shape};
    checkpoint::for_each_piece(whole, kPiece, [&](const Box& piece) {
      difference.add(read_box(a_, name, in_a, type_a, piece),
                     read_box(b_, name, in_b, type_b, piece), tolerance_);
      done_ += static_cast<uint64_t>(piece.numel() * dtype_bytes(type_a));
      if (on_progress_) on_progress_(done_, total_);
    });
    if (difference.count == 0) return "";
    return join_text(difference.count, " of ", numel, " elements differ, by up to ",
                     difference.largest);
  }

  static constexpr int64_t kPiece = int64_t{1} << 20;  // elements

  StoredState& a_;
  StoredState& b_;
  double tolerance_;
  const std::function<void(uint64_t, uint64_t)>& on_progress_;
  uint64_t total_ = 0;
  uint64_t done_ = 0;
};

}  // namespace

std::vector<EntryDifference> compare(
    StoredState& a, StoredState& b, double tolerance,
    const std::function<void(uint64_t bytes, uint64_t total)>& on_progress) {
  std::vector<EntryDifference> out;
  Comparison comparison(a, b, tolerance, on_progress);
  const auto& in_b = b.metadata().entries;
  for (const auto& [name, entry] : a.metadata().entries) {
    const auto found = in_b.find(name);
    std::string what =
        found == in_b.end() ? "only in the first" : comparison.entries(name, entry, found->second);
    if (!what.empty()) out.push_back({name, std::move(what)});
  }
  for (const auto& [name, entry] : in_b) {
    if (!a.metadata().entries.contains(name)) out.push_back({name, "only in the second"});
  }
  return out;
}

}  // namespace tessera::cli
