#include <algorithm>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/base/path_pattern.h"
#include "tessera/partition/graph/module_paths.h"
#include "tessera/partition/plan_file/plan.h"
#include "tessera/program/pytree.h"

namespace tessera::partition {
namespace {

using program::ArgKind;
using program::InputKind;
using program::ValueId;

using NamedValues = std::vector<std::pair<std::string, ValueId>>;

std::vector<std::string> names_of(const NamedValues& values) {
  std::vector<std::string> out;
  for (const auto& [name, id] : values) out.push_back(name);
  return out;
}

[[noreturn]] void fail_no_match(std::string_view kind, std::string_view pattern,
                                std::span<const std::string> names) {
  std::string near;
  for (const auto& name : nearest_paths(pattern, names)) {
    if (!name.empty()) near += (near.empty() ? "" : ", ") + name;  // the root module has no name
  }
  throw InvalidArgument(join_text("the plan names the ", kind, " ", pattern,
                                  ", which the program does not have",
                                  near.empty() ? "" : "; near it: ", near));
}

class Marker {
 public:
  Marker(ProgramView& view, const Plan& plan) : view_(view), plan_(plan), mesh_(view.mesh()) {
    axis_ = !plan.axis.empty()     ? mesh_.axis(plan.axis)
            : mesh_.has_axis("tp") ? mesh_.axis("tp")
                                   : mesh_.ndim() - 1;
    pins_.free_weights = plan.rest_auto;
    pins_.free_state = plan.rest_auto || !plan.modules.empty() || !plan.weights.empty();
    list_inputs();
  }

  Pins run() {
    for (const auto& [pattern, style] : plan_.modules) mark_modules(pattern, style);
    mark_values("weight", weights_, plan_.weights);
    mark_values("input", inputs_, plan_.inputs);
    NamedValues all;
    for (uint32_t v = 0; v < view_.graph().values.size(); ++v) {
      if (view_.whole(ValueId{v}).defined()) all.emplace_back(view_.name(ValueId{v}), ValueId{v});
    }
    mark_values("value", all, plan_.values);
    mark_outputs();
    return std::move(pins_);
  }

 private:
  void list_inputs() {
    const auto& program = view_.program();
    std::vector<std::string> names;
    if (!program.in_spec.empty()) {
      names =
          program::input_names(program::parse_pytree(program.in_spec), program.forward_arg_names);
    }
    size_t next = 0;
    for (const auto& input : program.signature.inputs) {
      const bool is_user = input.kind == InputKind::user_input;
      const std::string name = is_user && next < names.size() ? names[next] : "";
      next += is_user || input.kind == InputKind::constant_input ? 1 : 0;
      if (!input.arg || input.arg->kind != ArgKind::tensor) continue;
      const auto id = input.arg->as<ValueId>();
      if (is_user) {
        inputs_.emplace_back(name.empty() ? std::string(view_.name(id)) : name, id);
      } else {
        weights_.emplace_back(input.target, id);
      }
    }
  }

  void pin(std::string_view what, ValueId id, int axis, Pin pin) {
    id = view_.tied(id);
    const Placement& p = pin.placement;
    const Sharding& whole = view_.whole(id);
    if (p.is_sharded()) {
      require(p.dim() < whole.ndim(), "the plan shards dim ", p.dim(), " of ", what, ", which is ",
              [&] { return shape_text(whole.shape()); });
      divide(what, id, p.dim(), mesh_.size(axis));
    }
    require(!p.is_partial() || view_.source(id) == ProgramView::Source::node, "the plan makes ",
            what, " partial: graph inputs are whole or sharded");
    if (const Pin* known = pins_.find(id, axis)) {
      require(known->allows(p) || pin.allows(known->placement), "the plan wants ", what, " as ", p,
              " and, by another name or pattern, as ", known->placement);
      if (!known->any_shard) return;
    }
    pins_.set(id, axis, std::move(pin));
  }

  /// A symbolic dim may be sharded if its symbols are multiples.
  void divide(std::string_view what, ValueId id, int dim, int64_t ranks) {
    if (view_.can_shard(id, dim, ranks)) return;
    const auto& size = view_.graph().value(id).tensor->sizes[static_cast<size_t>(dim)];
    const auto symbol = size.expression()->as_symbol();
    require(symbol.has_value(), "the plan shards dim ", dim, " of ", what, ", whose size is ", size,
            ": only a size that is a single symbol can be asked to be divisible");
    require(size.hint() && *size.hint() % ranks == 0, "the plan shards dim ", dim, " of ", what,
            " over ", ranks, " ranks, and the program was exported with ", size, " = ",
            size.hint().value_or(0), ", which is not a multiple");
    view_.assume_multiple(*symbol, ranks);
  }

  void mark_values(std::string_view kind, const NamedValues& values,
                   const std::vector<std::pair<std::string, std::string>>& marks) {
    for (const auto& [pattern, text] : marks) {
      const auto placements = placements_of(pattern, text);
      bool any = false;
      for (const auto& [name, id] : values) {
        if (!matches_path(pattern, name)) continue;
        any = true;
        for (int axis = 0; axis < mesh_.ndim(); ++axis)
          pin(name, id, axis, {from_front(placements[static_cast<size_t>(axis)], id), false});
      }
      if (!any) fail_no_match(kind, pattern, names_of(values));
    }
  }

  Placement from_front(const Placement& p, ValueId id) const {
    return p.is_sharded() && p.dim() < 0 ? p.on_dim(p.dim() + view_.whole(id).ndim()) : p;
  }

  std::vector<Placement> placements_of(std::string_view pattern, std::string_view text) const {
    auto placements = parse_placements(text);
    require(std::ssize(placements) == mesh_.ndim(), "the plan gives ", pattern, " as ", text,
            ": one placement for each axis of ", mesh_, " is needed");
    return placements;
  }

  void mark_outputs() {
    if (plan_.outputs.empty()) return;
    const auto& program = view_.program();
    const auto names = program::output_names(program::parse_pytree(program.out_spec));
    std::vector<std::pair<std::string, size_t>> outputs;
    size_t next = 0;
    for (size_t i = 0; i < program.signature.outputs.size(); ++i) {
      if (program.signature.outputs[i].kind != program::OutputKind::user_output) continue;
      if (next < names.size()) outputs.emplace_back(names[next], i);
      ++next;
    }
    for (const auto& [pattern, text] : plan_.outputs) {
      const auto placements = placements_of(pattern, text);
      bool any = false;
      for (const auto& [name, output] : outputs) {
        if (!matches_path(pattern, name)) continue;
        const auto& argument = view_.graph().outputs[output];
        require(argument.kind == ArgKind::tensor, "the output ", name, " is not a tensor");
        any = true;
        for (int axis = 0; axis < mesh_.ndim(); ++axis) {
          const auto id = argument.as<ValueId>();
          const Placement p = from_front(placements[static_cast<size_t>(axis)], id);
          require(!p.is_partial(), "the output ", name, " would be partial sums");
          if (p.is_sharded()) divide(name, id, p.dim(), mesh_.size(axis));
          pins_.set_output(output, axis, p);
        }
      }
      if (!any) {
        std::vector<std::string> known;
        for (const auto& [name, output] : outputs) known.push_back(name);
        fail_no_match("output", pattern, known);
      }
    }
  }

  void mark_modules(const std::string& pattern, Style style) {
    std::set<std::string> paths;
    for (const auto& path : module_paths(view_.program())) {
      if (matches_path(pattern, path)) paths.insert(path);
    }
    if (paths.empty()) fail_no_match("module", pattern, module_paths(view_.program()));
    for (const auto& path : paths) {
      if (style == Style::sequence) {
        mark_sequence(path);
      } else {
        mark_weights(path, style);
      }
    }
  }

  void mark_sequence(const std::string& path) {
    bool any = false;
    for (const ValueId id : values_leaving(view_, path)) {
      const int ndim = view_.whole(id).ndim();
      if (ndim < 2) continue;
      pin(view_.name(id), id, axis_, {Shard(ndim - 2), false});
      any = true;
    }
    require(any, "the plan shards the sequence of ", path,
            ", from which no tensor of two or more dims comes");
  }

  void mark_weights(const std::string& path, Style style) {
    bool any = false;
    for (const auto& [name, id] : weights_) {
      const size_t dot = name.rfind('.');
      if ((dot == std::string::npos ? "" : name.substr(0, dot)) != path) continue;
      any = true;
      pin(name, id, axis_, pin_of(name, path, view_.tied(id), style));
    }
    require(any, "the plan has ", style_name(style), " for ", path, ", which has no weights");
  }

  Pin pin_of(const std::string& name, const std::string& path, ValueId id, Style style) const {
    if (style == Style::replicate) return {Replicate(), false};
    const int ndim = view_.whole(id).ndim();
    const auto dims = feature_dims(view_, id, path);
    if (!dims) {  // a bias, or nothing that multiplies
      require(
          ndim <= 1, "the plan has ", style_name(style), " for ", name, ", ",
          [&] { return shape_text(view_.whole(id).shape()); },
          ", which is not only used as the weight of a linear layer, an embedding or a ",
          "convolution: give its placement under \"weights\"");
      return style == Style::rowwise || ndim == 0 ? Pin{Replicate(), false} : Pin{Shard(0), true};
    }
    switch (style) {
      case Style::colwise:
        return {Shard(dims->out), true};
      case Style::rowwise:
        return {Shard(dims->in), true};
      default:  // vocabulary: rows of an embedding, outputs of a head
        return {Shard(dims->is_embedding ? dims->in : dims->out), true};
    }
  }

  ProgramView& view_;
  const Plan& plan_;
  DeviceMesh mesh_;
  int axis_ = 0;
  Pins pins_;
  NamedValues weights_, inputs_;
};

}  // namespace

Pins mark(ProgramView& view, const Plan& plan) { return Marker(view, plan).run(); }

Plan plan_of(const program::ExportedProgram& program, const Assignment& assignment) {
  Plan plan;
  std::vector<std::string> names;
  if (!program.in_spec.empty())
    names = program::input_names(program::parse_pytree(program.in_spec), program.forward_arg_names);
  const WrittenValues written = find_written(program, {});
  size_t next = 0;
  for (const auto& input : program.signature.inputs) {
    const bool is_user = input.kind == InputKind::user_input;
    const size_t at = next;
    next += is_user || input.kind == InputKind::constant_input ? 1 : 0;
    if (!input.arg || input.arg->kind != ArgKind::tensor) continue;
    const Sharding& sharding = assignment.of(input.arg->as<ValueId>());
    const auto id = input.arg->as<ValueId>();
    // State is free unless a plan places it.
    if (!sharding.defined() || (sharding.is_replicated() && !written.is_state[id.index])) continue;
    if (is_user) {
      if (at < names.size()) plan.inputs.emplace_back(names[at], sharding.placements_text());
    } else {
      plan.weights.emplace_back(input.target, sharding.placements_text());
    }
  }
  if (program.out_spec.empty()) return plan;
  const auto outputs = program::output_names(program::parse_pytree(program.out_spec));
  next = 0;
  for (size_t i = 0; i < program.signature.outputs.size(); ++i) {
    if (program.signature.outputs[i].kind != program::OutputKind::user_output) continue;
    const Sharding& sharding = assignment.outputs[i];
    if (next < outputs.size() && sharding.defined() && !sharding.is_replicated())
      plan.outputs.emplace_back(outputs[next], sharding.placements_text());
    ++next;
  }
  return plan;
}

}  // namespace tessera::partition
