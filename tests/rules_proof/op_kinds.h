#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "tessera/dtensor/dispatch/op/op_name.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/rules/registry/registry.h"
#include "tessera/rules/rule.h"

/// What becomes of an op on sharded tensors, and why.
namespace tessera::test {

enum class OpKind { ruled, handled, composite, makes_tensors, replicates, impossible };

/// Ops that mean nothing for sharded tensors: names that hold one of the words.
struct Impossible {
  std::string_view reason;
  std::string_view words;
};

constexpr std::array kImpossible = {
    Impossible{"sparse tensors: a shard is a dense block of memory",
               "sparse coo csr csc bsr bsc spdiags spsolve hspmm sspaddmm _nnz coalesce _indices "
               "indices values _values _dimI _dimV dense_dim _to_dense cslt native_norm "
               "col_indices row_indices"},
    Impossible{"quantized tensors: their scales are part of the element type",
               "quantize qscheme int_repr q_scale q_zero_point q_per_channel moving_avg_obs"},
    Impossible{"nested and jagged tensors: they have no global shape",
               "nested jagged to_padded_tensor matmul_backward native_multi_head triton"},
    Impossible{"kernels of one library or device, called below the op that chooses them",
               "cudnn miopen mkldnn mps nnpack int4pack mixed_dtypes dyn_quant transform_bias "
               "transformer_encoder max_pool2d_backward fused_dropout mem_eff fused_sdp_choice "
               "cummax_helper cummin_helper"},
    Impossible{"one memory: strides, storage and streams do not reach over ranks",
               "resize as_strided record_stream is_set_to storage_numel _copy_from set_ aten::set "
               "is_pinned"},
    Impossible{"derivatives of forward mode, and internals of functional transforms",
               "dual jvp same_feature_meta get_gradients functorch slice_inverse"},
    Impossible{"checks for tracers, tests and printing",
               "_test_ _foobar _assert sym_constrain _print _make_dep_token"},
};

/// Empty if nothing in the name rules it out. Words are whole parts of a name: "set_" is not in
/// "offset_x", "indices" is not in "max_pool2d_with_indices".
inline std::string_view why_impossible(std::string_view packet) {
  for (const auto& [reason, words] : kImpossible) {
    for (size_t begin = 0; begin < words.size();) {
      const size_t end = std::min(words.find(' ', begin), words.size());
      const std::string_view word = words.substr(begin, end - begin);
      begin = end + 1;
      const bool whole = word == "indices" || word == "values" || word == "set_" ||
                         word.starts_with("aten::") || word == "_indices" || word == "_values";
      const std::string full = "aten::" + std::string(packet);
      if (whole ? (packet == word || full == word || packet == std::string(word) + "_copy")
                : packet.find(word) != std::string_view::npos) {
        return reason;
      }
    }
  }
  return {};
}

inline bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
    return !argument.is_out() && argument.type()->str().find("Tensor") != std::string::npos;
  });
}

inline OpKind kind_of(const c10::OperatorHandle& op) {
  const std::string name = dtensor::op_name(op.operator_name());
  if (rules::find_rule(name) != nullptr) return OpKind::ruled;
  if (dtensor::is_decomposed(name)) return OpKind::handled;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    return OpKind::composite;
  if (!why_impossible(op.schema().name().substr(6)).empty()) return OpKind::impossible;
  return takes_tensors(op.schema()) ? OpKind::replicates : OpKind::makes_tensors;
}

}  // namespace tessera::test
