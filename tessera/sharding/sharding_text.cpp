#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/sharding/sharding_node.h"

namespace tessera {
namespace {

/// The parts of "mesh : placements : tensor"; the mesh may contain a ':' ("cuda:dp=2").
std::vector<std::string_view> split_parts(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t at = text.find(':'); at != std::string_view::npos; at = text.find(':', at + 1)) {
    const bool names_device =
        parts.empty() && text.substr(begin, at - begin).find('=') == std::string_view::npos;
    if (names_device) continue;
    parts.push_back(text.substr(begin, at - begin));
    begin = at + 1;
  }
  parts.push_back(text.substr(begin));
  require(parts.size() == 3, "cannot read \"", text,
          "\": a sharding is \"mesh : placements : shape\", like \"dp=2,tp=4 : S0,R : 8x16\"");
  return parts;
}

std::vector<int64_t> scan_shape(Scanner& scanner) {
  std::vector<int64_t> shape;
  if (scanner.accept_word("scalar")) return shape;
  do {
    shape.push_back(scanner.expect_int("a size, or \"scalar\""));
  } while (scanner.accept('x'));
  return shape;
}

/// The axes that shard one dim are numbered #0, #1, ... outermost first.
void check_place(const Sharding& read, int axis, int64_t place, std::string_view text) {
  const Placement& p = read.placement(axis);
  require(p.is_sharded(), "cannot read \"", text, "\": ", p, "#", place,
          ": only shards have a place in the order");
  const auto axes = read.axes_of_dim(p.dim());
  require(place >= 0 && place < std::ssize(axes) && axes[static_cast<size_t>(place)] == axis,
          "cannot read \"", text, "\": ", p, "#", place, ": the ", axes.size(),
          " axes that shard dim ", p.dim(), " are numbered from #0, each once");
}

}  // namespace

std::string Sharding::placements_text() const {
  if (has_default_order()) return tessera::placements_text(placements());
  std::string out;
  for (int axis = 0; axis < mesh().ndim(); ++axis) {
    const Placement& p = placement(axis);
    if (axis > 0) out += ',';
    out += p.to_text();
    if (!p.is_sharded()) continue;
    const auto axes = axes_of_dim(p.dim());
    if (axes.size() > 1) out += join_text("#", std::ranges::find(axes, axis) - axes.begin());
  }
  return out;
}

std::string Sharding::to_text() const {
  if (!defined()) return "(no sharding)";
  std::string out = join_text(mesh(), " : ", placements_text(), " : ", shape_text(shape()));
  if (dtype() != DType::f32) out += join_text(" ", dtype_name(dtype()));
  if (!std::ranges::equal(stride(), contiguous_stride(shape()))) {
    out += join_text(" {", list_text(stride()), "}");
  }
  return out;
}

Sharding Sharding::parse(std::string_view text) {
  const auto parts = split_parts(text);
  DeviceMesh mesh = DeviceMesh::parse(parts[0]);

  Scanner scanner(parts[1]);
  std::vector<Placement> placements;
  std::vector<std::optional<int64_t>> places;  // by axis, as written after '#'
  do {
    placements.push_back(Placement::scan(scanner));
    places.emplace_back();
    if (scanner.accept('#')) places.back() = scanner.expect_int("a place in the order");
  } while (scanner.accept(','));
  scanner.expect_done();
  ShardingOptions options;
  for (size_t axis = 0; axis < places.size(); ++axis) {
    options.order.push_back(static_cast<int>(axis));
  }
  std::ranges::stable_sort(options.order, {},
                           [&](int axis) { return places[static_cast<size_t>(axis)].value_or(0); });

  Scanner tensor(parts[2]);
  auto shape = scan_shape(tensor);
  if (tensor.peek() != '\0' && tensor.peek() != '{') {
    const auto name = tensor.expect_name("an element type like f32 or bf16");
    const auto dtype = dtype_from_name(name);
    require(dtype.has_value(), "no element type is called \"", name, "\", in \"", text, "\"");
    options.dtype = *dtype;
  }
  if (tensor.accept('{')) {
    do {
      options.stride.push_back(tensor.expect_int("a stride"));
    } while (tensor.accept(','));
    tensor.expect('}');
  }
  tensor.expect_done();
  if (static_cast<int>(placements.size()) != mesh.ndim()) options.order.clear();
  Sharding read(std::move(mesh), std::move(placements), std::move(shape), std::move(options));
  for (size_t axis = 0; axis < places.size(); ++axis) {
    if (places[axis]) check_place(read, static_cast<int>(axis), *places[axis], text);
  }
  return read;
}

}  // namespace tessera
