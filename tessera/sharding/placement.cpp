#include "tessera/sharding/placement.h"

#include <array>

#include "tessera/base/errors.h"
#include "tessera/base/intern.h"

namespace tessera {
namespace {

constexpr std::array<std::string_view, 8> kReduceOpNames = {"sum",     "avg",  "max", "min",
                                                            "product", "band", "bor", "bxor"};

}  // namespace

std::string_view reduce_op_name(ReduceOp op) { return kReduceOpNames[static_cast<size_t>(op)]; }

ReduceOp reduce_op_from_name(std::string_view name) {
  for (size_t i = 0; i < kReduceOpNames.size(); ++i) {
    if (kReduceOpNames[i] == name) return static_cast<ReduceOp>(i);
  }
  throw InvalidArgument(join_text("no reduction is called \"", name,
                                  "\"; there are sum, avg, max, min, product, band, bor, bxor"));
}

Placement Shard(int dim) {
  Placement p;
  p.kind_ = Placement::Kind::shard;
  p.dim_ = dim;
  return p;
}

Placement StridedShard(int dim, int64_t split) {
  require(split >= 1, "StridedShard(", dim, ", ", split, "): the split is at least 1");
  Placement p = Shard(dim);
  // A single piece is the plain shard; one normal form makes equal layouts compare equal.
  if (split > 1) {
    p.kind_ = Placement::Kind::strided;
    p.split_ = split;
  }
  return p;
}

Placement RaggedShard(int dim, std::vector<int64_t> sizes) {
  require(!sizes.empty(), "RaggedShard(", dim, ", {}): it needs one size a rank");
  const auto text = [&] { return list_text(sizes); };
  int64_t sum = 0;
  for (int64_t size : sizes) {
    require(size >= 0, "RaggedShard(", dim, ", {", text, "}): a size is negative");
    require(!__builtin_add_overflow(sum, size, &sum), "RaggedShard(", dim, ", {", text,
            "}): the sum does not fit 64 bits");
  }
  Placement p = Shard(dim);
  p.kind_ = Placement::Kind::ragged;
  p.sizes_ = std::make_shared<const std::vector<int64_t>>(std::move(sizes));
  return p;
}

Placement Partial(ReduceOp op) {
  Placement p;
  p.kind_ = Placement::Kind::partial;
  p.reduce_op_ = op;
  return p;
}

std::span<const int64_t> Placement::sizes() const {
  return sizes_ ? std::span<const int64_t>(*sizes_) : std::span<const int64_t>();
}

Placement Placement::on_dim(int dim) const {
  Placement p = *this;
  p.dim_ = dim;
  return p;
}

std::string Placement::to_text() const {
  switch (kind_) {
    case Kind::replicate:
      return "R";
    case Kind::shard:
      return join_text("S", dim_);
    case Kind::strided:
      return join_text("SS", dim_, "(", split_, ")");
    case Kind::ragged:
      return join_text("S", dim_, "[", list_text(sizes()), "]");
    case Kind::partial:
      return join_text("P(", reduce_op_name(reduce_op_), ")");
  }
  return "?";
}

Placement Placement::scan(Scanner& scanner) {
  constexpr std::string_view kForms = "a placement: R, S0, S0[3,3,1], SS0(2) or P(sum)";
  if (scanner.accept('R')) return Replicate();
  if (scanner.accept('P')) {
    if (!scanner.accept('(')) return Partial();
    const auto op = reduce_op_from_name(scanner.expect_name("a reduction"));
    scanner.expect(')');
    return Partial(op);
  }
  if (!scanner.accept('S')) scanner.fail(kForms);
  const bool strided = scanner.accept('S');
  const int64_t asked = scanner.expect_int("the dim of a shard");
  const auto dim = static_cast<int>(asked);
  require(dim == asked, "a shard of dim ", asked, ": no tensor has that many dims");
  if (strided) {
    scanner.expect('(');
    const int64_t split = scanner.expect_int("the split of a strided shard");
    scanner.expect(')');
    return StridedShard(dim, split);
  }
  if (!scanner.accept('[')) return Shard(dim);
  std::vector<int64_t> sizes;
  do {
    sizes.push_back(scanner.expect_int("a size of a ragged shard"));
  } while (scanner.accept(','));
  scanner.expect(']');
  return RaggedShard(dim, std::move(sizes));
}

Placement Placement::parse(std::string_view text) {
  Scanner scanner(text);
  Placement p = scan(scanner);
  scanner.expect_done();
  return p;
}

bool Placement::operator==(const Placement& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::replicate:
      return true;
    case Kind::partial:
      return reduce_op_ == other.reduce_op_;
    case Kind::shard:
      return dim_ == other.dim_;
    case Kind::strided:
      return dim_ == other.dim_ && split_ == other.split_;
    case Kind::ragged:
      return dim_ == other.dim_ && (sizes_ == other.sizes_ || *sizes_ == *other.sizes_);
  }
  return false;
}

size_t Placement::hash() const {
  size_t h = static_cast<size_t>(kind_);
  if (is_partial()) return hash_mix(h, static_cast<size_t>(reduce_op_));
  if (!is_sharded()) return h;
  h = hash_mix(h, static_cast<size_t>(dim_));
  h = hash_mix(h, static_cast<size_t>(split_));
  for (int64_t size : sizes()) h = hash_mix(h, static_cast<size_t>(size));
  return h;
}

std::string placements_text(std::span<const Placement> placements) {
  std::string out;
  for (size_t i = 0; i < placements.size(); ++i) {
    if (i > 0) out += ',';
    out += placements[i].to_text();
  }
  return out;
}

std::vector<Placement> parse_placements(std::string_view text) {
  Scanner scanner(text);
  std::vector<Placement> out;
  do {
    out.push_back(Placement::scan(scanner));
  } while (scanner.accept(','));
  scanner.expect_done();
  return out;
}

}  // namespace tessera
