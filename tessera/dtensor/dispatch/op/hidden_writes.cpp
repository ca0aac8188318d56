#include "tessera/dtensor/dispatch/op/hidden_writes.h"

#include <array>
#include <string_view>

namespace tessera::dtensor {
namespace {

struct HiddenWrite {
  std::string_view op;        ///< all overloads: "aten::native_batch_norm"
  std::string_view argument;  ///< "running_mean"
  std::string_view flag;      ///< written only if this argument is true; empty: always
};

constexpr auto kWrites = std::to_array<HiddenWrite>({
    {"aten::native_batch_norm", "running_mean", "training"},
    {"aten::native_batch_norm", "running_var", "training"},
    {"aten::cudnn_batch_norm", "running_mean", "training"},
    {"aten::cudnn_batch_norm", "running_var", "training"},
    {"aten::miopen_batch_norm", "running_mean", "training"},
    {"aten::miopen_batch_norm", "running_var", "training"},
    {"aten::batch_norm_update_stats", "running_mean", ""},
    {"aten::batch_norm_update_stats", "running_var", ""},
    {"aten::batch_norm_gather_stats", "running_mean", ""},
    {"aten::batch_norm_gather_stats", "running_var", ""},
    {"aten::batch_norm_gather_stats_with_counts", "running_mean", ""},
    {"aten::batch_norm_gather_stats_with_counts", "running_var", ""},
    {"aten::mkldnn_rnn_layer_backward", "workspace", ""},
    {"aten::_copy_from", "dst", ""},
    {"aten::_copy_from_and_resize", "dst", ""},
});

}  // namespace

std::vector<HiddenArg> hidden_args(const c10::FunctionSchema& schema) {
  std::vector<HiddenArg> out;
  for (const HiddenWrite& write : kWrites) {
    if (schema.name() != write.op) continue;
    const auto argument = schema.argumentIndexWithName(write.argument);
    if (!argument) continue;
    const auto flag = write.flag.empty() ? std::nullopt : schema.argumentIndexWithName(write.flag);
    out.push_back({*argument, flag.value_or(-1)});
  }
  return out;
}

}  // namespace tessera::dtensor
