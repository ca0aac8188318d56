#include "tessera/parallel/anchor.h"

#include <ATen/ops/add.h>

#include <algorithm>
#include <array>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/redistribute_once.h"
#include "tessera/observe/call_site.h"
#include "tessera/parallel/overlapped_linear.h"

namespace tessera::parallel {
namespace {

/// An op that uses weights, by the arguments that are its input and its weight.
struct AnchorOp {
  std::string_view name;
  OpFamily family;
  size_t input;
  size_t weight;
  bool in_by_out = false;  ///< takes the weight as [in, out]
};

constexpr std::array kAnchorOps = {
    AnchorOp{"aten::linear", OpFamily::linear, 0, 1},
    AnchorOp{"aten::matmul", OpFamily::linear, 0, 1, true},
    AnchorOp{"aten::mm", OpFamily::linear, 0, 1, true},
    AnchorOp{"aten::addmm", OpFamily::linear, 1, 2, true},
    AnchorOp{"aten::embedding", OpFamily::embedding, 1, 0},
    AnchorOp{"aten::embedding_bag", OpFamily::embedding, 1, 0},
    AnchorOp{"aten::conv1d", OpFamily::convolution, 0, 1},
    AnchorOp{"aten::conv2d", OpFamily::convolution, 0, 1},
    AnchorOp{"aten::conv3d", OpFamily::convolution, 0, 1},
    AnchorOp{"aten::conv_transpose1d", OpFamily::convolution, 0, 1},
    AnchorOp{"aten::conv_transpose2d", OpFamily::convolution, 0, 1},
    AnchorOp{"aten::conv_transpose3d", OpFamily::convolution, 0, 1},
    AnchorOp{"aten::convolution", OpFamily::convolution, 0, 1},
    AnchorOp{"aten::layer_norm", OpFamily::norm, 0, 2},
    AnchorOp{"aten::native_layer_norm", OpFamily::norm, 0, 2},
    AnchorOp{"aten::rms_norm", OpFamily::norm, 0, 2},
    AnchorOp{"aten::mul", OpFamily::norm, 0, 1},
    AnchorOp{"aten::mul", OpFamily::norm, 1, 0},
};

const AnchorOp* anchor_op(std::string_view name, size_t weight) {
  const auto at = std::ranges::find_if(
      kAnchorOps, [&](const AnchorOp& op) { return op.name == name && op.weight == weight; });
  return at == kAnchorOps.end() ? nullptr : &*at;
}

/// The dim of the input that the weight's inputs are along.
int feature_dim(OpFamily family, const at::Tensor& input, const at::Tensor& weight) {
  const int64_t from_end = family == OpFamily::convolution ? weight.dim() - 1 : 1;
  return static_cast<int>(input.dim() - from_end);
}

int axis_in(const DeviceMesh& mesh, const Anchor& anchor) {
  require(mesh.has_axis(anchor.axis), anchor.text, " over axis ", anchor.axis,
          " got a tensor on mesh ", mesh, ", which has no such axis");
  return mesh.axis(anchor.axis);
}

/// The placement of the input on the style's axis, of `input`'s dims; no value: as it comes.
std::optional<Placement> wanted_input(const Anchor& anchor, OpFamily used, const at::Tensor& input,
                                      const at::Tensor& weight) {
  if (!anchor.input_by_features) return anchor.input;
  if (used == OpFamily::embedding) return Replicate();  // indexes have no features
  return Shard(feature_dim(used, input, weight));
}

at::Tensor as_sharded(const Anchor& anchor, const at::Tensor& plain, Placement layout) {
  std::vector<Placement> placements(static_cast<size_t>(anchor.mesh.ndim()));
  placements[static_cast<size_t>(anchor.mesh.axis(anchor.axis))] = std::move(layout);
  return from_local(plain, anchor.mesh, std::move(placements));
}

at::Tensor as_input(const Anchor& anchor, OpFamily used, const at::Tensor& given,
                    const at::Tensor& weight) {
  if (is_dtensor(given)) return given;
  Placement layout = Replicate();
  if (anchor.plain_input) {
    layout = *anchor.plain_input;
  } else if (anchor.input_by_features) {
    layout = *wanted_input(anchor, used, given, weight);
  }
  return as_sharded(anchor, given, std::move(layout));
}

/// Redistributed once for all ops that use the same input (q, k and v), also where nothing moves:
/// their gradients are then added up before they are reduced.
at::Tensor prepared(const Anchor& anchor, OpFamily used, const at::Tensor& given,
                    const at::Tensor& weight) {
  const at::Tensor input = as_input(anchor, used, given, weight);
  const Sharding& has = sharding(input);
  const int axis = axis_in(has.mesh(), anchor);
  const Placement wanted = wanted_input(anchor, used, input, weight).value_or(has.placement(axis));
  if (has.placement(axis) == wanted) {
    return wanted.is_replicate() ? dtensor::redistribute_once(input, has) : input;
  }
  return dtensor::redistribute_once(input, has.with(axis, wanted));
}

/// Offsets and weights of the bags: libtorch makes the former itself, as a plain tensor.
void replicate_others(const Anchor& anchor, const AnchorOp& op, const dtensor::StyledCall& call) {
  if (op.name != "aten::embedding_bag") return;
  for (size_t i = 0; i < call.op.schema().arguments().size(); ++i) {
    c10::IValue& value = call.argument(i);
    if (i == op.input || i == op.weight || !value.isTensor()) continue;
    const at::Tensor tensor = value.toTensor();
    if (tensor.defined() && !is_dtensor(tensor)) value = as_sharded(anchor, tensor, Replicate());
  }
}

at::Tensor placed(const Anchor& anchor, const at::Tensor& result) {
  if (!anchor.output || !is_dtensor(result)) return result;
  const Sharding& has = sharding(result);
  const int axis = axis_in(has.mesh(), anchor);
  if (anchor.output->is_partial()) return result;
  const Sharding to = has.with(axis, *anchor.output);
  return to == has ? result : redistribute(result, to);
}

/// Runs linear or matmul with its communication overlapped, if that applies.
bool run_overlapped(const Anchor& anchor, const AnchorOp& op, const dtensor::StyledCall& call) {
  if (anchor.overlap <= 1 || (op.name != "aten::linear" && op.name != "aten::matmul")) return false;
  const at::Tensor given = call.argument(op.input).toTensor();
  const at::Tensor weight = call.argument(op.weight).toTensor();
  const at::Tensor matrix = op.in_by_out ? weight.t() : weight;
  std::optional<at::Tensor> result;
  if (!anchor.input_by_features) {
    const at::Tensor input = as_input(anchor, op.family, given, weight);
    const int axis = axis_in(sharding(input).mesh(), anchor);
    result = gather_linear(input, matrix, axis, anchor.overlap);
  } else if (anchor.output) {
    const at::Tensor input = prepared(anchor, op.family, given, weight);
    const int axis = axis_in(sharding(input).mesh(), anchor);
    result = linear_scatter(input, matrix, axis, *anchor.output, anchor.overlap);
  }
  if (!result) return false;
  const size_t arguments = call.op.schema().arguments().size();
  const at::Tensor bias = op.name == "aten::linear" && call.argument(2).isTensor()
                              ? call.argument(2).toTensor()
                              : at::Tensor();
  if (bias.defined()) result = at::add(*result, bias);
  torch::jit::drop(call.stack, arguments);
  torch::jit::push(call.stack, placed(anchor, *result));
  return true;
}

class AnchoredStyle final : public dtensor::WeightStyle {
 public:
  AnchoredStyle(std::vector<Anchor> anchors, bool is_transpose)
      : anchors_(std::move(anchors)), is_transpose_(is_transpose) {}

  bool call(const dtensor::StyledCall& call) const override {
    const AnchorOp* op = anchor_op(call.op.operator_name().name, call.weight);
    if (op == nullptr || !call.argument(op->input).isTensor()) return false;
    const auto anchor =
        std::ranges::find_if(anchors_, [&](const Anchor& one) { return is_for(one, *op); });
    if (anchor == anchors_.end()) return false;
    const comm::CallSite site({.op = anchor->text});
    if (run_overlapped(*anchor, *op, call)) return true;
    c10::IValue& input = call.argument(op->input);
    input = prepared(*anchor, op->family, input.toTensor(), call.argument(op->weight).toTensor());
    replicate_others(*anchor, *op, call);
    call.run();
    c10::IValue& result = call.stack[call.stack.size() - call.op.schema().returns().size()];
    result = placed(*anchor, result.toTensor());
    return true;
  }

  std::shared_ptr<const dtensor::WeightStyle> transposed() const override {
    return std::make_shared<AnchoredStyle>(anchors_, !is_transpose_);
  }

 private:
  /// A matrix must be the way round that the op takes it: derivatives use it the other way.
  bool is_for(const Anchor& anchor, const AnchorOp& op) const {
    if (anchor.family == OpFamily::linear && op.family == OpFamily::embedding) {
      return anchor.in_by_out && !is_transpose_;  // an embedding that is not libtorch's module
    }
    if (anchor.family != op.family) return false;
    return op.family != OpFamily::linear || is_transpose_ == (op.in_by_out != anchor.in_by_out);
  }

  std::vector<Anchor> anchors_;
  bool is_transpose_;
};

}  // namespace

std::shared_ptr<const dtensor::WeightStyle> anchored_style(std::vector<Anchor> anchors) {
  return std::make_shared<AnchoredStyle>(std::move(anchors), /*is_transpose=*/false);
}

}  // namespace tessera::parallel
