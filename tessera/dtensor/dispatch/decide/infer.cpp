#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/decide/decide.h"
#include "tessera/dtensor/dispatch/decide/result_stride.h"

namespace tessera::dtensor {
namespace {

/// A wrapped number is kept: every kernel accepts it together with meta tensors, and kernels
/// written in Python read its value.
at::Tensor on_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  return at::Tensor(
      at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
}

/// A plain tensor of the global shape; plain tensors are kept.
at::Tensor as_zeros(const at::Tensor& tensor) {
  if (sharded_meta(tensor) == nullptr) return tensor;
  return at::zeros(tensor.sizes(), at::dtype(tensor.scalar_type()));
}

c10::IValue arg_on_meta(ArgKind kind, const c10::IValue& value) {
  if (value.isTensor()) return on_meta(value.toTensor());
  if (value.isDevice()) return c10::Device(c10::DeviceType::Meta);
  if (kind != ArgKind::tensor_list || value.isNone()) return value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(on_meta(tensor));
    return out;
  }
  c10::List<std::optional<at::Tensor>> out;
  for (const auto& item : value.toListRef()) {
    out.push_back(item.isNone() ? std::optional<at::Tensor>() : on_meta(item.toTensor()));
  }
  return out;
}

std::optional<rules::ResultMeta> meta_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  return rules::ResultMeta{{tensor.sizes().begin(), tensor.sizes().end()},
                           {tensor.strides().begin(), tensor.strides().end()},
                           static_cast<DType>(tensor.scalar_type()),
                           tensor.storage_offset()};
}

/// Whether a kernel failed because its tensors are on meta; any other error is about the caller's
/// arguments.
bool is_about_meta(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text.find("meta") != std::string::npos || text.find("not allocated") != std::string::npos;
}

/// Some Meta kernels reject empty tensors that the op itself accepts.
bool has_empty_operand(const OpEntry& entry, const Stack& stack) {
  return std::ranges::any_of(operands_of(entry, stack), [](const auto& operand) {
    return operand.tensor->defined() && operand.tensor->numel() == 0;
  });
}

/// Matrix products require one dtype. libtorch checks it in the kernel, when other ranks may
/// already have started to communicate.
void check_one_dtype(const OpEntry& entry, const Stack& stack) {
  constexpr std::array<std::string_view, 11> kOps = {
      "aten::mm",    "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addbmm",     "aten::mv",
      "aten::addmv", "aten::dot", "aten::vdot",  "aten::linear",  "aten::convolution"};
  if (std::ranges::find(kOps, entry.name) == kOps.end()) return;
  const auto operands = operands_of(entry, stack);
  for (const auto& operand : operands) {
    require(!operand.tensor->defined() ||
                operand.tensor->scalar_type() == operands[0].tensor->scalar_type(),
            entry.name, ": tensors of different types; cast one with to(dtype). Operands: ", [&] {
              return operands_text(operands);
            });
  }
}

/// self.index_add(dim, index, source) with an empty index. libtorch's Meta kernels inspect the
/// first row of the source, and fail because there is none.
bool takes_no_rows(const OpEntry& entry, std::span<const c10::IValue> arguments) {
  const bool by_rows =
      entry.name.starts_with("aten::index_add") || entry.name.starts_with("aten::index_reduce");
  return by_rows && arguments[2].isTensor() && arguments[2].toTensor().numel() == 0;
}

/// linalg_vector_norm(self, ord, dim, ...): before libtorch 2.13 its Meta kernel, which is written
/// in Python, keeps a dim of one element if it is counted from the end.
void count_dims_from_front(const OpEntry& entry, std::span<c10::IValue> arguments) {
  if (!entry.name.starts_with("aten::linalg_vector_norm") || !arguments[2].isIntList()) return;
  std::vector<int64_t> dims = arguments[2].toIntVector();
  for (int64_t& dim : dims) dim += dim < 0 ? arguments[0].toTensor().dim() : 0;
  arguments[2] = std::move(dims);
}

/// where(condition, self, other), which has no Meta kernel in C++.
at::Tensor where_on_meta(const Stack& meta) {
  const auto tensor = [&](size_t i) { return meta[meta.size() - 3 + i].toTensor(); };
  const at::Tensor values = tensor(1).add(tensor(2));
  return values.add(tensor(0).to(values.scalar_type()));
}

}  // namespace

std::vector<std::optional<rules::ResultMeta>> infer_results(const OpEntry& entry,
                                                            const c10::OperatorHandle& op,
                                                            const Stack& stack) {
  const auto arguments = torch::jit::last(stack, entry.args.size());
  if (entry.infer != nullptr) return entry.infer(arguments);
  if (takes_no_rows(entry, arguments)) return {meta_of(arguments[0].toTensor())};
  check_one_dtype(entry, stack);
  Stack meta;
  const size_t base = stack.size() - entry.args.size();
  for (size_t i = 0; i < entry.args.size(); ++i) {
    meta.push_back(arg_on_meta(entry.args[i], stack[base + i]));
  }
  count_dims_from_front(entry, meta);
  // Owns the out= arguments: libtorch's boxed wrapper drops them from the stack before it pushes
  // the results, which reference them.
  const Stack owner = meta;
  try {
    op.callBoxed(&meta);
  } catch (const c10::NotImplementedError&) {
    if (entry.name != "aten::where.self") return {};
    meta = {where_on_meta(owner)};
  } catch (c10::Error& error) {
    if (is_about_meta(error.what_without_backtrace()) || has_empty_operand(entry, stack)) return {};
    error.add_context(
        join_text(entry.name, " of sharded tensors: ", operands_text(operands_of(entry, stack))));
    throw;
  } catch (const std::exception&) {  // a kernel written in Python: the op itself will fail
    return {};
  }
  std::vector<std::optional<rules::ResultMeta>> out;
  for (const auto& value : meta) {
    if (value.isTensor()) {
      out.push_back(meta_of(value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(meta_of(tensor));
    } else {
      out.emplace_back(std::nullopt);
    }
  }
  correct_strides(entry.name, arguments, out);
  return out;
}

std::vector<std::optional<rules::ResultMeta>> infer_by_running(const OpEntry& entry,
                                                               const c10::OperatorHandle& op,
                                                               const Stack& stack) {
  if (op.hasTag(at::Tag::dynamic_output_shape) || !entry.written.empty()) return {};
  Stack zeros;
  const size_t base = stack.size() - entry.args.size();
  for (size_t i = 0; i < entry.args.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    if (entry.args[i] == ArgKind::tensor_list || value.isDevice()) return {};
    zeros.push_back(value.isTensor() ? as_zeros(value.toTensor()) : value);
  }
  try {
    op.callBoxed(&zeros);
  } catch (const std::exception&) {
    return {};
  }
  std::vector<std::optional<rules::ResultMeta>> out;
  for (const auto& value : zeros) {
    out.push_back(value.isTensor() ? meta_of(value.toTensor()) : std::nullopt);
  }
  return out;
}

}  // namespace tessera::dtensor
