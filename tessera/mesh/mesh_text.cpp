#include "tessera/base/errors.h"
#include "tessera/base/ranks_text.h"
#include "tessera/mesh/axes_text.h"
#include "tessera/mesh/mesh_node.h"

namespace tessera {
namespace {

bool counts_from_zero(std::span<const int> ranks) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] != static_cast<int>(i)) return false;
  }
  return true;
}

std::vector<int> parse_ranks(Scanner& scanner) {
  std::vector<int> ranks;
  do {
    const int64_t first = scanner.expect_int("a rank");
    int64_t last = first;
    if (scanner.accept('-')) last = scanner.expect_int("the last rank of a range");
    require(first >= 0 && first <= last && last <= INT32_MAX, "ranks ", first, "-", last,
            " are not a range of ranks");
    require(last - first < kMaxRanks - std::ssize(ranks), "a mesh of more than ", kMaxRanks,
            " ranks");
    for (int64_t rank = first; rank <= last; ++rank) ranks.push_back(static_cast<int>(rank));
  } while (scanner.accept(','));
  return ranks;
}

/// Besides letters, digits and '_', PyTorch programs use '-', '.' and '/': "mesh-0".
std::string read_axis_name(Scanner& scanner, std::string_view what) {
  std::string name = scanner.expect_name(what);
  for (char c = scanner.peek(); is_axis_name(name + c); c = scanner.peek()) {
    scanner.expect(c);
    name += c;
  }
  return name;
}

}  // namespace

std::string DeviceMesh::Node::to_text() const {
  std::string out = device == "cpu" ? "" : device + ":";
  for (size_t i = 0; i < axes.size(); ++i) {
    if (i > 0) out += ',';
    out += join_text(axes[i].name, "=", axes[i].size);
  }
  if (!counts_from_zero(ranks)) out += "@" + ranks_text(ranks, RankRuns::consecutive);
  return out;
}

std::string DeviceMesh::to_text() const { return defined() ? node().to_text() : "(no mesh)"; }

DeviceMesh DeviceMesh::parse(std::string_view text) {
  Scanner scanner(text);
  std::string device = "cpu";
  std::vector<MeshAxis> axes;
  std::string name = read_axis_name(scanner, "the name of a mesh axis or a device");
  if (scanner.accept(':')) {
    device = name;
    name = read_axis_name(scanner, "the name of a mesh axis");
  }
  while (true) {
    scanner.expect('=');
    const int64_t size = scanner.expect_int("the size of a mesh axis");
    require(size >= 1 && size <= INT32_MAX, "mesh axis ", name, " has size ", size, " in \"", text,
            "\"");
    axes.push_back({name, static_cast<int>(size)});
    if (!scanner.accept(',')) break;
    name = read_axis_name(scanner, "the name of a mesh axis");
  }
  if (scanner.accept('@')) {
    auto ranks = parse_ranks(scanner);
    scanner.expect_done();
    return DeviceMesh(std::move(axes), std::move(ranks), std::move(device));
  }
  scanner.expect_done();
  return DeviceMesh(std::move(axes), std::move(device));
}

std::string axes_text(const DeviceMesh& mesh, std::span<const int> axes) {
  std::string out;
  for (const int axis : axes) out += (out.empty() ? "" : "+") + mesh.axis_name(axis);
  return out;
}

}  // namespace tessera
