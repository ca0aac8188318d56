#include "tessera/sharding/sharding_node.h"

#include "tessera/base/errors.h"
#include "tessera/base/intern.h"

namespace tessera {

size_t Sharding::Node::hash() const {
  size_t h = mesh.hash();
  for (const auto& p : placements) h = hash_mix(h, p.hash());
  for (int64_t size : shape) h = hash_mix(h, static_cast<size_t>(size));
  for (int64_t s : stride) h = hash_mix(h, static_cast<size_t>(s));
  for (const auto& axes : axes_of_dim) {
    for (int axis : axes) h = hash_mix(h, static_cast<size_t>(axis));
  }
  return hash_mix(h, static_cast<size_t>(dtype));
}

bool Sharding::Node::operator==(const Node& other) const {
  return mesh == other.mesh && dtype == other.dtype && shape == other.shape &&
         stride == other.stride && placements == other.placements &&
         axes_of_dim == other.axes_of_dim;
}

bool Sharding::Node::has_default_order() const {
  for (const auto& axes : axes_of_dim) {
    for (size_t i = 1; i < axes.size(); ++i) {
      if (axes[i - 1] > axes[i]) return false;
    }
  }
  return true;
}

std::vector<int> Sharding::Node::order() const {
  std::vector<int> out;
  for (const auto& axes : axes_of_dim) out.insert(out.end(), axes.begin(), axes.end());
  return out;
}

}  // namespace tessera
