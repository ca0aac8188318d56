#include "tessera/rules/choice/candidates.h"

#include <algorithm>
#include <tuple>

#include "tessera/base/errors.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::rules {
namespace {

/// More than any redistribution: an operand written in place should not be moved.
constexpr double kMovesWritten = 1e6;
/// Less than any: on an axis of one rank nothing is sent, but a moved operand is no longer a view.
constexpr double kMovesAlone = 1e-12;

ReduceOp family(const Placement& p) {
  return p.reduce_op() == ReduceOp::avg ? ReduceOp::sum : p.reduce_op();
}

double share(const Placement& p, int ranks) { return p.is_sharded() ? 1.0 / ranks : 1.0; }

double work_of(const Row& row, int ranks) {
  if (row.letter < 0 || row.size <= 0) return ranks;
  const int64_t most = chunk_interval(row.size, ranks, 0).size();
  return static_cast<double>(most) * ranks / static_cast<double>(row.size);
}

}  // namespace

Candidates::Candidates(const Rule& rule, const OpCall& call, CandidateOptions options)
    : rule_(rule),
      call_(call),
      options_(options),
      operands_(call.operands()),
      machine_(cost::default_machine(call.mesh.device())),
      links_(cost::links_of(call.mesh, machine_)),
      by_axis_(static_cast<size_t>(call.mesh.ndim())) {
  for (const auto& operand : operands_) {
    double bytes = 0;
    if (operand.defined()) {
      bytes = static_cast<double>(operand.numel() * dtype_bytes(operand.dtype()));
      for (int axis = 0; axis < call.mesh.ndim(); ++axis) {
        if (operand.placement(axis).is_sharded()) bytes /= call.mesh.size(axis);
      }
    }
    local_bytes_.push_back(bytes);
  }
  for (int axis = 0; axis < call.mesh.ndim(); ++axis) add_axis(axis);
}

void Candidates::add_axis(int axis) {
  auto& out = by_axis_[static_cast<size_t>(axis)];
  std::vector<Row> rows = rule_.rows(call_, axis);
  Row replicated;
  replicated.operands.resize(operands_.size());
  const size_t results =
      rows.empty() ? (rule_.result_count < 0 ? 0 : static_cast<size_t>(rule_.result_count))
                   : rows.front().results.size();
  replicated.results.resize(results);
  rows.push_back(std::move(replicated));

  bool any_partial = false;
  bool all_replicated = true;
  for (const auto& operand : operands_) {
    if (!operand.defined()) continue;
    any_partial |= operand.placement(axis).is_partial();
    all_replicated &= operand.placement(axis).is_replicate();
  }
  // Replicated operands stay replicated: nothing in this call requests shards.
  if (all_replicated && options_.replicated_stays) rows.erase(rows.begin(), rows.end() - 1);
  const int ranks = call_.mesh.size(axis);
  for (auto& row : rows) {
    // Partial values are not created only to be passed through.
    const bool passes = row.letter < 0 && std::ranges::any_of(row.operands, &Placement::is_partial);
    if (passes && !any_partial && options_.given_partials) continue;
    if (rule_.in_place && !row.results.empty() && row.results[0] != row.operands[0]) continue;
    Candidate c{std::move(row), 0, 0, 0};
    c.seconds = guess(c.row, axis) + kernel_seconds(axis, c.row);
    c.work = work_of(c.row, ranks);
    for (const auto& p : c.row.operands) c.memory += share(p, ranks);
    for (const auto& p : c.row.results) c.memory += share(p, ranks);
    out.push_back(std::move(c));
  }
  std::ranges::stable_sort(out, [](const Candidate& a, const Candidate& b) {
    return std::tie(a.seconds, a.work, a.memory) < std::tie(b.seconds, b.work, b.memory);
  });
}

KernelComm Candidates::comm(int axis, const Row& row) const {
  return call_.mesh.size(axis) > 1 ? row.comm : KernelComm::none;
}

double Candidates::kernel_seconds(int axis, const Row& row) const {
  if (comm(axis, row) != KernelComm::combine) return 0;
  return static_cast<double>(row.sent) / links_[static_cast<size_t>(axis)].bytes_per_s;
}

double Candidates::guess(const Row& row, int axis) const {
  double sum = 0;
  for (size_t o = 0; o < operands_.size(); ++o) {
    if (!operands_[o].defined()) continue;
    const Placement& now = operands_[o].placement(axis);
    const bool out = o + static_cast<size_t>(rule_.out_count) >= operands_.size();
    sum += out ? move_seconds(o, axis, row.operands[o], now)
               : move_seconds(o, axis, now, row.operands[o]);
    if (o == 0 && rule_.in_place && now != row.operands[o]) sum += kMovesWritten;
  }
  return sum;
}

double Candidates::move_seconds(size_t operand, int axis, const Placement& from,
                                const Placement& to) const {
  if (from == to) return 0;
  const auto bytes = static_cast<int64_t>(local_bytes_[operand]);
  const int ranks = call_.mesh.size(axis);
  if (ranks == 1) return kMovesAlone;
  const cost::Link& link = links_[static_cast<size_t>(axis)];
  if (from.is_replicate()) {
    return cost::copy_seconds(machine_, to.is_sharded() ? bytes / ranks : bytes);
  }
  if (from.is_sharded()) {
    if (to.is_sharded()) return cost::all_to_all_seconds(link, ranks, bytes);
    const double gather = cost::all_gather_seconds(link, ranks, bytes * ranks);
    return to.is_replicate() ? gather : gather + cost::copy_seconds(machine_, bytes * ranks);
  }
  if (to.is_replicate()) return cost::all_reduce_seconds(link, ranks, bytes);
  if (to.is_sharded()) return cost::reduce_scatter_seconds(link, ranks, bytes);
  const double copy = cost::copy_seconds(machine_, bytes);
  return family(from) == family(to) ? copy : copy + cost::all_reduce_seconds(link, ranks, bytes);
}

namespace {

bool keeps_as_is(std::span<const Row* const> rows, const Sharding& now, size_t axis) {
  const auto source = static_cast<size_t>(rows[axis]->as_is);
  const int dim = now.placement(static_cast<int>(axis)).dim();
  for (size_t other = 0; other < rows.size(); ++other) {
    const Placement& then = rows[other]->operands[source];
    const Placement& is = now.placement(static_cast<int>(other));
    if ((then.is_sharded(dim) || is.is_sharded(dim)) && then != is) return false;
  }
  return true;
}

/// Whether one of the tensors would be partial in two ways.
bool mixes_partials(std::span<const Row* const> rows, std::vector<Placement> Row::*tensors) {
  for (size_t i = 0; i < (rows[0]->*tensors).size(); ++i) {
    const Placement* first = nullptr;
    for (const Row* row : rows) {
      const Placement& p = (row->*tensors)[i];
      if (!p.is_partial()) continue;
      if (first != nullptr && family(*first) != family(p)) return true;
      first = &p;
    }
  }
  return false;
}

}  // namespace

std::string conflict_of(std::span<const Row* const> rows, std::span<const Sharding> operands,
                        const DeviceMesh& mesh) {
  if (rows.size() > 1 &&
      (mixes_partials(rows, &Row::operands) || mixes_partials(rows, &Row::results))) {
    return "two kinds of partial in one tensor";
  }
  std::string_view kernel;
  for (const Row* row : rows) {
    if (row->kernel.empty()) continue;
    if (!kernel.empty() && row->kernel != kernel)
      return join_text("two kernels for one call, ", kernel, " and ", row->kernel);
    kernel = row->kernel;
  }
  for (size_t axis = 0; axis < rows.size(); ++axis) {
    const Row& row = *rows[axis];
    if (row.as_is >= 0 && !keeps_as_is(rows, operands[static_cast<size_t>(row.as_is)], axis))
      return "a ragged shard fits only as it is";
    if (rows.size() == 1 || (!row.even && !row.nonempty && row.multiple == 1)) continue;
    int64_t parts = 1;
    bool alone = true;
    for (size_t other = 0; other < rows.size(); ++other) {
      if (rows[other]->letter != row.letter) continue;
      parts *= mesh.size(static_cast<int>(other));
      alone &= other == axis;
    }
    if (alone || row.size % (parts * row.multiple) == 0) continue;
    return join_text(row.size, " elements for ", parts, " ranks",
                     row.multiple > 1 ? ": parts not aligned"
                     : row.even       ? ": not even"
                                      : ": some could be empty");
  }
  return {};
}

std::string Candidates::conflict(std::span<const int> picks) const {
  std::vector<const Row*> rows;
  for (int axis = 0; axis < axes(); ++axis) rows.push_back(&at(picks, axis).row);
  return conflict_of(rows, operands_, call_.mesh);
}

}  // namespace tessera::rules
