#include "cli/checkpoint_diff.h"

#include <ATen/ops/empty.h>

#include "tessera/base/errors.h"
#include "tessera/dcp/check.h"

namespace tessera::cli {
namespace {

using checkpoint::StoredState;

std::string kind_text(const dcp::Entry& entry) {
  const auto* tensor = std::get_if<dcp::TensorEntry>(&entry);
  if (tensor == nullptr) return "a value";
  return join_text(tensor->dtype ? dtype_name(*tensor->dtype) : "?", " ",
                   shape_text(tensor->shape));
}

std::string compare_tensors(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  const at::ScalarType wide = a.is_complex() ? at::kComplexDouble : at::kDouble;
  const at::Tensor x = a.to(wide);
  const at::Tensor y = b.to(wide);
  const at::Tensor both_nan = x.isnan().logical_and(y.isnan());
  const at::Tensor gap = (x - y).abs().masked_fill(both_nan.logical_or(x.eq(y)), 0);
  const at::Tensor differs = gap.le(tolerance).logical_not();  // a NaN on one side differs too
  const auto count = differs.sum().item<int64_t>();
  if (count == 0) return "";
  return join_text(count, " of ", a.numel(), " elements differ, by up to ",
                   gap.max().item<double>());
}

std::string compare_entries(StoredState& a, StoredState& b, const std::string& name,
                            const dcp::Entry& in_a, const dcp::Entry& in_b, double tolerance) {
  if (kind_text(in_a) != kind_text(in_b)) {
    return join_text(kind_text(in_a), " and ", kind_text(in_b));
  }
  if (const auto* value = std::get_if<dcp::ValueEntry>(&in_a)) {
    const auto first = a.read_value(name, *value);
    const auto second = b.read_value(name, std::get<dcp::ValueEntry>(in_b));
    return first == second ? "" : join_text(first, " and ", second);
  }
  return compare_tensors(whole_tensor(a, name, std::get<dcp::TensorEntry>(in_a)),
                         whole_tensor(b, name, std::get<dcp::TensorEntry>(in_b)), tolerance);
}

}  // namespace

at::Tensor whole_tensor(StoredState& stored, const std::string& name,
                        const dcp::TensorEntry& entry) {
  dcp::check_chunks(name, entry, stored.path().string());
  at::Tensor out;
  for (const auto& chunk : entry.chunks) {
    if (chunk.box.numel() == 0) continue;
    const at::Tensor part = stored.read(name, chunk, chunk.box);
    const auto alignment = reinterpret_cast<uintptr_t>(part.const_data_ptr()) %
                           static_cast<uintptr_t>(part.element_size());
    if (chunk.box.numel() == part.numel() && at::IntArrayRef(entry.shape) == part.sizes() &&
        alignment == 0) {
      return part;
    }
    if (!out.defined()) out = at::empty(entry.shape, part.options());
    at::Tensor target = out;
    for (size_t d = 0; d < entry.shape.size(); ++d) {
      target = target.narrow(static_cast<int64_t>(d), chunk.box.begin[d],
                             chunk.box.end[d] - chunk.box.begin[d]);
    }
    checkpoint::copy_elements(target, part);
  }
  if (out.defined()) return out;
  const auto dtype = entry.dtype ? static_cast<at::ScalarType>(*entry.dtype) : at::kFloat;
  return at::empty(entry.shape, at::TensorOptions(dtype));
}

std::vector<EntryDifference> compare(StoredState& a, StoredState& b, double tolerance) {
  std::vector<EntryDifference> out;
  const auto& in_b = b.metadata().entries;
  for (const auto& [name, entry] : a.metadata().entries) {
    const auto found = in_b.find(name);
    std::string what = found == in_b.end()
                           ? "only in the first"
                           : compare_entries(a, b, name, entry, found->second, tolerance);
    if (!what.empty()) out.push_back({name, std::move(what)});
  }
  for (const auto& [name, entry] : in_b) {
    if (!a.metadata().entries.contains(name)) out.push_back({name, "only in the second"});
  }
  return out;
}

}  // namespace tessera::cli
