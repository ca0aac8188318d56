#include "tessera/parallel/resolve_plan.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "tessera/base/errors.h"
#include "tessera/base/path_pattern.h"

namespace tessera::parallel {
namespace {

struct StyledModule {
  std::string path;
  torch::nn::Module* module;
  const Style* style;
  bool by_pattern;

  std::string to_text() const {
    return join_text("parallelize_module: ", *style, " for ",
                     path.empty() ? std::string("the module itself") : path, " (", module->name(),
                     ")");
  }
};

bool is_pattern(std::string_view path) {
  return path.find_first_of("*?[") != std::string_view::npos;
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

using NamedModules = torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>;

[[noreturn]] void throw_no_match(const std::string& path, const NamedModules& modules) {
  std::vector<std::string> paths;
  for (const auto& module : modules) {
    if (!module.key().empty()) paths.push_back(module.key());
  }
  throw InvalidArgument(join_text("parallelize_module: no submodule matches '", path,
                                  "'; nearest: ", joined(nearest_paths(path, paths))));
}

/// The modules that the plan names, in the order of the modules.
std::vector<StyledModule> styled_modules(torch::nn::Module& root, const ParallelPlan& plan) {
  // Not include_self, which needs a module that a shared_ptr owns.
  NamedModules modules = root.named_modules(std::string(), /*include_self=*/false);
  std::map<std::string, StyledModule> found;
  const auto add = [&](const StyledModule& one) {
    const auto [at, is_new] = found.try_emplace(one.path, one);
    if (is_new) return;
    require(one.by_pattern != at->second.by_pattern, one, ": the plan also has ", *at->second.style,
            " for it");
    if (!one.by_pattern) at->second = one;
  };
  for (const auto& [path, style] : plan) {
    bool any = path.empty();
    if (path.empty()) add({"", &root, &style, false});
    for (const auto& module : modules) {
      if (!matches_path(path, module.key())) continue;
      any = true;
      add({module.key(), module.value().get(), &style, is_pattern(path)});
    }
    if (!any) throw_no_match(path, modules);
  }
  std::vector<StyledModule> out;
  if (const auto own = found.find(""); own != found.end()) out.push_back(own->second);
  for (const auto& module : modules) {
    if (const auto at = found.find(module.key()); at != found.end()) out.push_back(at->second);
  }
  return out;
}

at::Tensor own_parameter(const torch::nn::Module& module, const std::string& name) {
  const auto parameters = module.named_parameters(/*recurse=*/false);
  const at::Tensor* found = parameters.find(name);
  return found != nullptr ? *found : at::Tensor();
}

at::Tensor own_weight(const StyledModule& styled) {
  const at::Tensor weight = own_parameter(*styled.module, "weight");
  if (weight.defined()) return weight;
  std::vector<std::string> names;
  for (const auto& item : styled.module->named_parameters()) names.push_back(item.key());
  throw InvalidArgument(
      join_text(styled, ": the module has no parameter 'weight' of its own, ",
                names.empty() ? std::string("nor any other")
                              : join_text("its parameters are ", joined(names)),
                "; C++ modules have no hooks, so a style needs a weight: name the submodules that "
                "hold one"));
}

OpFamily family_of(const StyledModule& styled, const at::Tensor& weight) {
  const auto* table = styled.module->as<torch::nn::EmbeddingImpl>();
  const auto* bags = styled.module->as<torch::nn::EmbeddingBagImpl>();
  if (table != nullptr || bags != nullptr) {
    require(!(table != nullptr ? table->options.sparse() : bags->options.sparse()), styled,
            ": sparse gradients of a sharded weight are not supported; set sparse(false)");
    return OpFamily::embedding;
  }
  if (weight.dim() == 1) return OpFamily::norm;
  if (weight.dim() == 2) return OpFamily::linear;
  require(weight.dim() >= 3 && weight.dim() <= 5, styled, ": its weight is ",
          shape_text(weight.sizes()),
          "; a style splits weights of 2 dims, or of 3 to 5 for convolutions");
  return OpFamily::convolution;
}

/// [in, out] instead of [out, in]: embeddings, transposed convolutions, and where the style says
/// so.
bool has_inputs_first(const StyledModule& styled, OpFamily family) {
  return family == OpFamily::embedding || styled.style->in_by_out ||
         styled.module->name().find("ConvTranspose") != std::string::npos;
}

/// The placement of `size` outputs, in parts of whole heads.
Placement outputs_over(const StyledModule& styled, int dim, int64_t size, int ranks) {
  const Style& style = *styled.style;
  require(style.parts >= 1 && size % style.parts == 0, styled, ": ", size, " outputs are not ",
          style.parts, " equal parts");
  if (style.heads != 0) {
    require(style.heads > 0 && (size / style.parts) % style.heads == 0, styled, ": ",
            size / style.parts, " outputs are not ", style.heads, " equal heads");
    if (style.heads < ranks && ranks % style.heads == 0) {
      require(style.parts == 1, styled, ": ", style.heads, " heads are fewer than the ", ranks,
              " ranks, and so are replicated; that needs a weight of one part");
      return Replicate();
    }
    require(style.heads % ranks == 0, styled, ": ", style.heads, " heads cannot be divided over ",
            ranks, " ranks");
  }
  return style.parts == 1 ? Shard(dim) : StridedShard(dim, style.parts);
}

/// How the weight, its bias and its op are affected.
struct Split {
  Placement weight = {};
  Placement bias = {};
  Anchor anchor = {};
};

Split split_outputs(const StyledModule& styled, const at::Tensor& weight, OpFamily family,
                    int ranks) {
  require(family != OpFamily::norm, styled, ": its weight is ", shape_text(weight.sizes()),
          ", which has no output features to split");
  const int dim = has_inputs_first(styled, family) ? 1 : 0;
  Split out;
  out.weight = outputs_over(styled, dim, weight.size(dim), ranks);
  if (!out.weight.is_replicate()) out.bias = out.weight.on_dim(0);
  out.anchor.input = Replicate();
  out.anchor.plain_input = styled.style->input_layout;
  out.anchor.output = styled.style->output_layout;
  return out;
}

Split split_inputs(const StyledModule& styled, const at::Tensor& weight, OpFamily family) {
  require(family != OpFamily::norm, styled, ": its weight is ", shape_text(weight.sizes()),
          ", which has no input features to split");
  Split out;
  out.weight = Shard(has_inputs_first(styled, family) ? 0 : 1);
  out.anchor.input_by_features = family != OpFamily::embedding;
  if (family == OpFamily::embedding) out.anchor.input = Replicate();
  out.anchor.plain_input = styled.style->input_layout;
  out.anchor.output = styled.style->output_layout;
  return out;
}

Split split_of(const StyledModule& styled, const at::Tensor& weight, OpFamily family, int ranks) {
  const Style& style = *styled.style;
  if (style.kind == Style::Kind::colwise) return split_outputs(styled, weight, family, ranks);
  if (style.kind == Style::Kind::rowwise) return split_inputs(styled, weight, family);
  Split out;
  out.anchor.plain_input = style.input_layout;
  out.anchor.output = style.output_layout;
  out.anchor.input = style.desired_input;
  if (style.kind == Style::Kind::sequence) {
    require(family == OpFamily::norm, styled, ": its weight is ", shape_text(weight.sizes()),
            "; SequenceParallel is for LayerNorm, RMSNorm and Dropout");
    out.anchor.input = Shard(style.sequence_dim);
  }
  return out;
}

/// Adds a parameter, or a second role of one that modules share.
void add_parameter(std::vector<PlacedParameter>& out, PlacedParameter added) {
  const auto shared = std::ranges::find_if(
      out, [&](const PlacedParameter& other) { return other.tensor.is_same(added.tensor); });
  if (shared == out.end()) {
    out.push_back(std::move(added));
    return;
  }
  require(shared->placement == added.placement, "parallelize_module: ", shared->path, " and ",
          added.path, " are the same tensor, but the plan places it as ", shared->placement,
          " and as ", added.placement);
  shared->anchors.insert(shared->anchors.end(), added.anchors.begin(), added.anchors.end());
}

/// `groups` is a member of each class of convolutions, not of a common base; all print it.
void check_groups(const StyledModule& styled, const at::Tensor& weight) {
  std::ostringstream text;
  styled.module->pretty_print(text);
  require(text.str().find("groups=") == std::string::npos, styled,
          ": a grouped convolution, whose weight of ", shape_text(weight.sizes()),
          " connects channels of one group only, cannot be split");
}

bool keeps_layout(const StyledModule& styled) {
  return styled.style->kind == Style::Kind::sequence &&
         styled.module->name().find("Dropout") != std::string::npos;
}

}  // namespace

std::vector<PlacedParameter> resolve_plan(torch::nn::Module& module, const DeviceMesh& mesh,
                                          const std::string& axis, const ParallelPlan& plan) {
  const int ranks = mesh.size(mesh.axis(axis));
  std::vector<PlacedParameter> out;
  for (const StyledModule& styled : styled_modules(module, plan)) {
    if (keeps_layout(styled))
      continue;  // Dropout has no weight; its result is laid out as its input
    const at::Tensor weight = own_weight(styled);
    const OpFamily family = family_of(styled, weight);
    if (family == OpFamily::convolution) check_groups(styled, weight);
    Split split = split_of(styled, weight, family, ranks);
    split.anchor.family = family;
    split.anchor.mesh = mesh;
    split.anchor.axis = axis;
    split.anchor.text = styled.style->to_text();
    split.anchor.in_by_out = family == OpFamily::linear && styled.style->in_by_out;
    require(styled.style->overlap >= 1, styled, ": ", styled.style->overlap, " pieces");
    split.anchor.overlap = styled.style->overlap;
    const std::string prefix = styled.path.empty() ? "" : styled.path + ".";
    add_parameter(out, {prefix + "weight", weight, split.weight, {split.anchor}});
    const at::Tensor bias = own_parameter(*styled.module, "bias");
    if (bias.defined()) add_parameter(out, {prefix + "bias", bias, split.bias, {}});
  }
  return out;
}

}  // namespace tessera::parallel
