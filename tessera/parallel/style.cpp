#include "tessera/parallel/style.h"

#include <array>

#include "tessera/base/text.h"

namespace tessera {
namespace parallel {

std::string Style::to_text() const {
  constexpr std::array kNames = {"ColwiseParallel", "RowwiseParallel", "SequenceParallel",
                                 "PrepareModuleInput", "PrepareModuleOutput"};
  std::string options;
  const auto add = [&](const auto&... part) {
    options += join_text(std::string_view(options.empty() ? "" : ", "), part...);
  };
  if (output_layout) add("output ", *output_layout);
  if (parts != 1) add(parts, " parts");
  if (heads != 0) add(heads, " heads");
  if (in_by_out) add("weight in by out");
  if (overlap != 1) add(overlap, " overlapped pieces");
  if (kind == Kind::sequence) add("dim ", sequence_dim);
  return join_text(kNames[static_cast<size_t>(kind)], "(", options, ")");
}

}  // namespace parallel

parallel::Style ColwiseParallel(const ColwiseOptions& options) {
  parallel::Style out;
  out.kind = parallel::Style::Kind::colwise;
  out.input_layout = options.input_layout;
  out.output_layout = options.output_layout;
  out.parts = options.parts;
  out.heads = options.heads;
  out.in_by_out = options.in_by_out;
  out.overlap = options.overlap;
  return out;
}

parallel::Style RowwiseParallel(const RowwiseOptions& options) {
  parallel::Style out;
  out.kind = parallel::Style::Kind::rowwise;
  out.input_layout = options.input_layout;
  out.output_layout = options.output_layout;
  out.in_by_out = options.in_by_out;
  out.overlap = options.overlap;
  return out;
}

parallel::Style SequenceParallel(const SequenceOptions& options) {
  parallel::Style out;
  out.kind = parallel::Style::Kind::sequence;
  out.input_layout = Shard(options.sequence_dim);
  out.sequence_dim = options.sequence_dim;
  return out;
}

parallel::Style PrepareModuleInput(Placement input_layout, Placement desired) {
  parallel::Style out;
  out.kind = parallel::Style::Kind::prepare_input;
  out.input_layout = std::move(input_layout);
  out.desired_input = std::move(desired);
  return out;
}

parallel::Style PrepareModuleOutput(Placement desired) {
  parallel::Style out;
  out.kind = parallel::Style::Kind::prepare_output;
  out.output_layout = std::move(desired);
  return out;
}

}  // namespace tessera
