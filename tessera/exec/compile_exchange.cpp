#include "tessera/exec/compile_exchange.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::exec {
namespace {

enum class Direction { pack, unpack };

/// Copies between a local tensor of this shape and a buffer of the pieces for (or from) each peer,
/// one after the other; peer `without` has none.
BlockCopy copy_pieces(Direction direction, std::span<const int64_t> shape,
                      std::span<const Overlap> pieces,
                      std::optional<size_t> without = std::nullopt) {
  BlockCopy out;
  int64_t at = 0;
  for (size_t peer = 0; peer < pieces.size(); ++peer) {
    if (peer == without) continue;
    const Overlap& piece = pieces[peer];
    if (direction == Direction::pack) {
      out.add(piece.to_piece(), shape, 0, piece.shape(), at);
    } else {
      out.add(piece.from_piece(), piece.shape(), at, shape, 0);
    }
    at += piece.numel();
  }
  return out;
}

/// The piece for this rank itself bypasses the messages, see Action::keep.
void keep_apart(Action& action, std::span<const Overlap> to_peer,
                std::span<const Overlap> from_peer, size_t me) {
  const int64_t kept = to_peer[me].numel();
  action.copies_self = true;
  action.keep.add(to_peer[me], action.in_shape, 0, action.out_shape, 0);
  action.send_counts[me] = action.receive_counts[me] = 0;
  action.send_numel -= kept;
  action.receive_numel -= kept;
  // Separate buffers then contain only the messages.
  if (action.packs) action.pack = copy_pieces(Direction::pack, action.in_shape, to_peer, me);
  if (action.unpacks) {
    action.unpack = copy_pieces(Direction::unpack, action.out_shape, from_peer, me);
  }
  if (me == 0 && !action.packs) action.send_offset = kept;
  if (me == 0 && !action.unpacks) action.receive_offset = kept;
}

/// Who sends what in a transfer. If several ranks hold the same part, a receiver that is one of
/// them uses its own copy; the others are distributed evenly over the holders.
class Senders {
 public:
  explicit Senders(const Sharding& from) {
    const auto& mesh = from.mesh();
    for (int rank : mesh.ranks()) {
      const Coordinate coordinate = *mesh.coordinate_of(rank);
      Coordinate part = coordinate;
      for (int axis = 0; axis < mesh.ndim(); ++axis) {
        if (!from.placement(axis).is_sharded()) part[static_cast<size_t>(axis)] = 0;
      }
      holders_[part].push_back(rank);
    }
  }

  /// Whether `sender` sends its part to `receiver`.
  bool gives(int sender, int receiver) const {
    for (const auto& [part, ranks] : holders_) {
      if (std::ranges::find(ranks, sender) == ranks.end()) continue;
      const bool has_it = std::ranges::find(ranks, receiver) != ranks.end();
      return has_it ? sender == receiver
                    : sender == ranks[static_cast<size_t>(receiver) % ranks.size()];
    }
    return false;
  }

 private:
  std::map<Coordinate, std::vector<int>> holders_;
};

Overlap nothing(int ndim) {
  Overlap out;
  // A 0-dim tensor has no dim that could be empty; one empty dim makes the product zero.
  out.runs.resize(static_cast<size_t>(std::max(ndim, 1)));
  return out;
}

}  // namespace

void compile_exchange(Action& action, std::span<const Overlap> to_peer,
                      std::span<const Overlap> from_peer, size_t me) {
  for (const auto& shared : to_peer) {
    action.send_counts.push_back(shared.numel());
    action.send_numel += shared.numel();
  }
  for (const auto& shared : from_peer) {
    action.receive_counts.push_back(shared.numel());
    action.receive_numel += shared.numel();
  }
  action.pack = copy_pieces(Direction::pack, action.in_shape, to_peer);
  action.unpack = copy_pieces(Direction::unpack, action.out_shape, from_peer);
  action.packs = !(action.send_numel == numel_of(action.in_shape) &&
                   action.pack.is_identity(action.send_numel));
  action.unpacks = !(action.receive_numel == numel_of(action.out_shape) &&
                     action.unpack.is_identity(action.receive_numel));
  const bool at_an_end = me == 0 || me + 1 == to_peer.size();
  if (at_an_end && !to_peer[me].empty()) keep_apart(action, to_peer, from_peer, me);
}

std::vector<int> compile_transfer(Action& action, const plan::Step& step) {
  const auto& source = step.from.mesh();
  const auto& target = step.to.mesh();
  require(source.world() == target.world(),
          "a move between meshes of different worlds: ", step.from, " -> ", step.to);
  std::set<int> all(source.ranks().begin(), source.ranks().end());
  all.insert(target.ranks().begin(), target.ranks().end());
  const std::vector<int> union_ranks(all.begin(), all.end());
  const int me = *source.my_rank();
  const auto my_source = source.coordinate_of(me);
  const auto my_target = target.coordinate_of(me);
  action.in_shape = my_source ? local_shape(step.from, *my_source)
                              : std::vector<int64_t>(step.from.shape().size(), 0);
  action.out_shape = my_target ? local_shape(step.to, *my_target)
                               : std::vector<int64_t>(step.to.shape().size(), 0);
  const Senders senders(step.from);
  std::vector<Overlap> to_peer;
  std::vector<Overlap> from_peer;
  for (int peer : union_ranks) {
    const auto peer_source = source.coordinate_of(peer);
    const auto peer_target = target.coordinate_of(peer);
    to_peer.push_back(my_source && peer_target && senders.gives(me, peer)
                          ? overlap(step.from, *my_source, step.to, *peer_target)
                          : nothing(step.from.ndim()));
    from_peer.push_back(peer_source && my_target && senders.gives(peer, me)
                            ? overlap(step.from, *peer_source, step.to, *my_target)
                            : nothing(step.from.ndim()));
  }
  const auto my_place = std::ranges::find(union_ranks, me) - union_ranks.begin();
  compile_exchange(action, to_peer, from_peer, static_cast<size_t>(my_place));
  return union_ranks;
}

}  // namespace tessera::exec
