#include "tessera/partition/rewrite/emitter.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/partition/graph/sizes.h"

namespace tessera::partition {

using program::ArgKind;
using program::Argument;
using program::IntOrValue;
using program::NamedArgument;
using program::Node;
using program::PassedBy;
using program::Size;
using program::TensorMeta;
using program::Value;
using program::ValueId;
using program::ValueKind;

namespace {

constexpr std::pair<DType, DType> kComplexTypes[] = {
    {DType::c32, DType::f16}, {DType::c64, DType::f32}, {DType::c128, DType::f64}};

/// "slice" of "torch.ops.aten.slice.Tensor", "mul" of "_operator.mul".
std::string value_name(std::string_view target) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= target.size();) {
    const size_t dot = std::min(target.find('.', at), target.size());
    parts.push_back(target.substr(at, dot - at));
    at = dot + 1;
  }
  const bool is_op = target.starts_with("torch.ops.") && parts.size() >= 5;
  return std::string(is_op ? parts[3] : parts.back());
}

}  // namespace

const TensorMeta& Emitter::meta(ValueId id) const {
  const auto& meta = graph_.value(id).tensor;
  ensure(meta.has_value(), "a value that is not a tensor was used as one");
  return *meta;
}

void Emitter::belongs_to(const Node& node) { module_stack_ = node.metadata_of("nn_module_stack"); }

void Emitter::append(Node node) { graph_.nodes.push_back(std::move(node)); }

NamedArgument Emitter::named(std::string name, Argument arg) {
  return {std::move(name), std::move(arg), PassedBy::position};
}

NamedArgument Emitter::tensor(std::string name, ValueId id) {
  return named(std::move(name), Argument::of_tensor(id));
}

Argument Emitter::size(const IntOrValue& either) {
  if (const auto* number = std::get_if<int64_t>(&either)) return Argument::of_int(*number);
  return {ArgKind::sym_int, either};
}

Argument Emitter::sizes(std::vector<IntOrValue> list) {
  std::vector<int64_t> numbers;
  for (const auto& item : list) {
    if (const auto* number = std::get_if<int64_t>(&item)) numbers.push_back(*number);
  }
  if (numbers.size() == list.size()) return Argument::of_ints(std::move(numbers));
  return {ArgKind::sym_ints, std::move(list)};
}

ValueId Emitter::op(std::string_view target, std::vector<NamedArgument> inputs, TensorMeta meta) {
  Value value;
  value.name = graph_.unused_name(value_name(target));
  value.tensor = std::move(meta);
  value.tensor->requires_grad = false;
  const ValueId id = graph_.add_value(std::move(value));
  define(id, target, std::move(inputs));
  return id;
}

void Emitter::define(ValueId result, std::string_view target, std::vector<NamedArgument> inputs) {
  Node node;
  node.target = target;
  node.inputs = std::move(inputs);
  switch (graph_.value(result).kind) {
    case ValueKind::sym_int:
      node.outputs = {{ArgKind::sym_int, IntOrValue(result)}};
      break;
    case ValueKind::sym_bool:
      node.outputs = {{ArgKind::sym_bool, program::BoolOrValue(result)}};
      break;
    default:
      node.outputs = {Argument::of_tensor(result)};
  }
  node.name = graph_.value(result).name;
  if (!module_stack_.empty()) node.metadata.emplace_back("nn_module_stack", module_stack_);
  append(std::move(node));
}

void Emitter::effect(std::string_view target, std::vector<NamedArgument> inputs) {
  Node node;
  node.target = target;
  node.inputs = std::move(inputs);
  node.name = graph_.unused_name(value_name(target));
  if (!module_stack_.empty()) node.metadata.emplace_back("nn_module_stack", module_stack_);
  append(std::move(node));
}

TensorMeta Emitter::with_sizes(ValueId x, std::vector<Size> sizes) const {
  TensorMeta out = meta(x);
  out.strides = dense_strides(sizes);
  out.sizes = std::move(sizes);
  out.storage_offset = 0;
  return out;
}

ValueId Emitter::slice(ValueId x, int dim, Span span) {
  TensorMeta out = meta(x);  // a view: the strides stay
  const auto d = static_cast<size_t>(dim);
  const Size whole = out.sizes[d];
  out.sizes[d] = part_of(whole, span.end - span.begin);
  const Argument begin = size(part(x, dim, span.begin));
  const Argument end = size(part(x, dim, span.end));
  return op("torch.ops.aten.slice.Tensor",
            {tensor("self", x), named("dim", Argument::of_int(dim)), named("start", begin),
             named("end", end)},
            std::move(out));
}

ValueId Emitter::cat(const std::vector<ValueId>& parts, int dim) {
  ensure(!parts.empty(), "cat of nothing");
  if (parts.size() == 1) return parts[0];
  std::vector<Size> out = meta(parts[0]).sizes;
  Size& along = out[static_cast<size_t>(dim)];
  int64_t sum = 0;
  for (const ValueId part : parts) sum += hint_of(meta(part).sizes[static_cast<size_t>(dim)]);
  // Parts of a symbolic dim are shares of one size, so their sum is a share of the first.
  if (!along.is_number()) {
    const Share share = share_of(sum, hint_of(along));
    Size unit = along;
    if (share.denominator != 1) {
      unit = Size(program::divide(*along.expression(), share.denominator),
                  hint_of(along) / share.denominator);
    }
    along = partition::multiply(share.numerator, unit);
  } else {
    along = sum;
  }
  return op("torch.ops.aten.cat.default",
            {named("tensors", {ArgKind::tensors, parts}), named("dim", Argument::of_int(dim))},
            with_sizes(parts[0], std::move(out)));
}

ValueId Emitter::pad(ValueId x, std::span<const int64_t> shape) {
  std::vector<int64_t> amounts;
  std::vector<Size> sizes = meta(x).sizes;
  bool any = false;
  for (size_t d = shape.size(); d-- > 0;) {
    const int64_t more = shape[d] - hint_of(sizes[d]);
    amounts.insert(amounts.end(), {0, more});
    any |= more != 0;
    ensure(more == 0 || sizes[d].is_number(), "a symbolic size cannot be padded");
    if (more != 0) sizes[d] = shape[d];
  }
  if (!any) return x;
  return op("torch.ops.aten.constant_pad_nd.default",
            {tensor("self", x), named("pad", Argument::of_ints(std::move(amounts)))},
            with_sizes(x, std::move(sizes)));
}

ValueId Emitter::contiguous(ValueId x) {
  return op("torch.ops.aten.contiguous.default", {tensor("self", x)}, with_sizes(x, meta(x).sizes));
}

ValueId Emitter::flatten(ValueId x) {
  Size count = 1;
  for (const Size& size : meta(x).sizes) count = partition::multiply(count, size);
  return op("torch.ops.aten.reshape.default",
            {tensor("self", x), named("shape", Argument::of_ints({-1}))}, with_sizes(x, {count}));
}

ValueId Emitter::unflatten(ValueId x, ValueId like, std::span<const int64_t> shape) {
  std::vector<IntOrValue> list;
  std::vector<Size> out;
  for (size_t d = 0; d < shape.size(); ++d) {
    list.push_back(part(like, static_cast<int>(d), shape[d]));
    out.push_back(part_of(meta(like).sizes[d], shape[d]));
  }
  return op("torch.ops.aten.reshape.default",
            {tensor("self", x), named("shape", sizes(std::move(list)))},
            with_sizes(x, std::move(out)));
}

ValueId Emitter::zeros_like(ValueId x) {
  return op("torch.ops.aten.zeros_like.default", {tensor("self", x)}, meta(x));
}

ValueId Emitter::ones_like(ValueId x) {
  return op("torch.ops.aten.ones_like.default", {tensor("self", x)}, meta(x));
}

ValueId Emitter::multiply(ValueId x, double by) {
  return op("torch.ops.aten.mul.Scalar",
            {tensor("self", x), named("other", {ArgKind::floating, by})}, meta(x));
}

ValueId Emitter::reinterpret(ValueId x, DType dtype) {
  TensorMeta out = meta(x);
  ensure(dtype_bytes(out.dtype) == dtype_bytes(dtype), "elements of another width");
  out.dtype = dtype;
  return op("torch.ops.aten.view.dtype",
            {tensor("self", x), named("dtype", {ArgKind::scalar_type, dtype})}, std::move(out));
}

std::optional<DType> real_dtype(DType dtype) {
  const auto* found = std::ranges::find(kComplexTypes, dtype, &std::pair<DType, DType>::first);
  return found == std::end(kComplexTypes) ? std::nullopt : std::optional(found->second);
}

ValueId Emitter::as_real(ValueId x) {
  x = op("torch.ops.aten.resolve_conj.default", {tensor("self", x)}, meta(x));
  TensorMeta out = meta(x);
  out.dtype = real_dtype(out.dtype).value();
  for (Size& stride : out.strides) stride = partition::multiply(stride, 2);
  out.strides.emplace_back(1);
  out.sizes.emplace_back(2);
  return op("torch.ops.aten.view_as_real.default", {tensor("self", x)}, std::move(out));
}

ValueId Emitter::as_complex(ValueId x) {
  std::vector<Size> sizes = meta(x).sizes;
  sizes.pop_back();
  TensorMeta out = with_sizes(x, std::move(sizes));
  out.dtype = std::ranges::find(kComplexTypes, out.dtype, &std::pair<DType, DType>::second)->first;
  return op("torch.ops.aten.view_as_complex.default", {tensor("self", x)}, std::move(out));
}

ValueId Emitter::all_reduce(ValueId x, ReduceOp op_kind, const std::string& group) {
  return op("torch.ops._c10d_functional.all_reduce.default",
            {tensor("input", x),
             named("reduce_op", Argument::of_string(std::string(reduce_op_name(op_kind)))),
             named("group_name", Argument::of_string(group))},
            with_sizes(x, meta(x).sizes));
}

ValueId Emitter::all_gather(ValueId x, int64_t ranks, const std::string& group) {
  std::vector<Size> sizes = meta(x).sizes;
  sizes[0] = partition::multiply(ranks, sizes[0]);
  return op("torch.ops._c10d_functional.all_gather_into_tensor.default",
            {tensor("input", contiguous(x)), named("group_size", Argument::of_int(ranks)),
             named("group_name", Argument::of_string(group))},
            with_sizes(x, std::move(sizes)));
}

ValueId Emitter::reduce_scatter(ValueId x, ReduceOp op_kind, int64_t ranks,
                                const std::string& group) {
  std::vector<Size> sizes = meta(x).sizes;
  sizes[0] = part_of(sizes[0], hint_of(sizes[0]) / ranks);
  return op("torch.ops._c10d_functional.reduce_scatter_tensor.default",
            {tensor("input", contiguous(x)),
             named("reduce_op", Argument::of_string(std::string(reduce_op_name(op_kind)))),
             named("group_size", Argument::of_int(ranks)),
             named("group_name", Argument::of_string(group))},
            with_sizes(x, std::move(sizes)));
}

ValueId Emitter::all_to_all(ValueId x, std::vector<IntOrValue> receive,
                            std::vector<IntOrValue> send, Size rows, const std::string& group) {
  std::vector<Size> out = meta(x).sizes;
  out[0] = std::move(rows);
  return op("torch.ops._c10d_functional.all_to_all_single.default",
            {tensor("input", contiguous(x)), named("output_split_sizes", sizes(std::move(receive))),
             named("input_split_sizes", sizes(std::move(send))),
             named("group_name", Argument::of_string(group))},
            with_sizes(x, std::move(out)));
}

ValueId Emitter::wait(ValueId x) {
  return op("torch.ops._c10d_functional.wait_tensor.default", {tensor("tensor", x)}, meta(x));
}

ValueId Emitter::sym_size(ValueId x, int dim) {
  const auto known = sym_sizes_.find({x.index, dim});
  if (known != sym_sizes_.end()) return known->second;
  const Size& size = meta(x).sizes[static_cast<size_t>(dim)];
  Value value;
  value.name = graph_.unused_name("sym_size_int");
  value.kind = ValueKind::sym_int;
  value.size = size;
  const ValueId id = graph_.add_value(std::move(value));
  define(id, "torch.ops.aten.sym_size.int",
         {tensor("self", x), named("dim", Argument::of_int(dim))});
  sym_sizes_.emplace(std::pair(x.index, dim), id);
  return id;
}

ValueId Emitter::arithmetic(std::string_view name, ValueId a, const IntOrValue& b, Size result) {
  Value value;
  value.name = graph_.unused_name(name);
  value.kind = ValueKind::sym_int;
  value.size = std::move(result);
  const ValueId id = graph_.add_value(std::move(value));
  define(id, "_operator." + std::string(name), {named("a", size(a)), named("b", size(b))});
  return id;
}

ValueId Emitter::floordiv(ValueId a, int64_t n) {
  const Size& size = graph_.value(a).size.value();
  return arithmetic("floordiv", a, n, part_of(size, hint_of(size) / n));
}

ValueId Emitter::times(ValueId a, IntOrValue b) {
  const auto* other = std::get_if<ValueId>(&b);
  const Size factor = other != nullptr ? graph_.value(*other).size.value() : Size(std::get<0>(b));
  return arithmetic("mul", a, b, partition::multiply(graph_.value(a).size.value(), factor));
}

IntOrValue Emitter::part(ValueId sym_int, int64_t part) {
  const Share share = share_of(part, hint_of(graph_.value(sym_int).size.value()));
  if (part == 0) return int64_t{0};
  ValueId out = sym_int;
  if (share.denominator != 1) out = floordiv(out, share.denominator);
  if (share.numerator != 1) out = times(out, share.numerator);
  return out;
}

IntOrValue Emitter::part(ValueId x, int dim, int64_t part) {
  const Size& size = meta(x).sizes[static_cast<size_t>(dim)];
  if (size.is_number() || part == 0) return part;
  return this->part(sym_size(x, dim), part);
}

IntOrValue Emitter::count(ValueId x, std::span<const int64_t> shape) {
  int64_t numbers = 1;
  std::optional<ValueId> symbols;
  for (size_t d = 0; d < shape.size(); ++d) {
    const IntOrValue one = part(x, static_cast<int>(d), shape[d]);
    if (const auto* number = std::get_if<int64_t>(&one)) {
      numbers *= *number;
    } else {
      symbols = symbols ? times(*symbols, one) : std::get<ValueId>(one);
    }
  }
  if (!symbols || numbers == 0) return numbers;
  return numbers == 1 ? *symbols : times(*symbols, numbers);
}

}  // namespace tessera::partition
