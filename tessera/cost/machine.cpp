#include "tessera/cost/machine.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <mutex>

#include "tessera/base/errors.h"

namespace tessera::cost {
namespace {

int64_t tree_hops(int64_t ranks) {
  return ranks <= 1 ? 0 : static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(ranks - 1)));
}

double share(int64_t ranks, int64_t bytes) {
  return static_cast<double>(bytes) * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
}

// A group of an axis is every `stride`-th rank of a block of consecutive positions in the row-major
// list; blocks follow one another.

bool groups_stay_in_host(std::span<const int> ranks, int64_t block, int64_t stride, int per_host) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto place = static_cast<int64_t>(i) % block;
    if (place < stride) continue;  // the first of its group
    const auto first = i - static_cast<size_t>(place - place % stride);
    if (ranks[i] / per_host != ranks[first] / per_host) return false;
  }
  return true;
}

bool count_up(std::span<const int> ranks) {
  bool all = true;  // no early exit, so that the loop is vectorized
  for (size_t i = 0; i < ranks.size(); ++i) all &= ranks[i] == ranks[0] + static_cast<int>(i);
  return all;
}

/// The same for consecutive ranks: mostly without checking each.
bool runs_stay_in_host(std::span<const int> ranks, int64_t block, int64_t stride, int per_host) {
  if (block == stride) return true;                                 // groups of one
  if (block - stride >= per_host) return false;                     // first to last of a group
  if (per_host % block == 0 && ranks[0] % block == 0) return true;  // hosts hold whole blocks
  return groups_stay_in_host(ranks, block, stride, per_host);
}

struct Default {
  std::mutex mutex;
  std::map<std::string, Machine> by_device = {{"cpu", Machine::cpu_processes()}};
};

/// Separate from the machines: read by every look-up of a cached decision.
constinit std::atomic<uint64_t> versions{0};

Default& the_default() {
  static auto* instance = new Default();
  return *instance;
}

}  // namespace

Link slowest(std::span<const Link> links) {
  Link out = links.empty() ? Link{} : links.front();
  for (const auto& link : links) {
    out.start_s = std::max(out.start_s, link.start_s);
    out.hop_s = std::max(out.hop_s, link.hop_s);
    out.bytes_per_s = std::min(out.bytes_per_s, link.bytes_per_s);
  }
  return out;
}

// benchmarks/redistribute_bench on two idle cores: an all_gather of 1 KiB takes 23 us, one of 64
// MiB, of which a rank receives half, 18.9 ms; a reduce_scatter 26 us and 17.8 ms.
Machine Machine::cpu_processes() {
  Machine m;
  m.within_host = {2e-5, 5e-6, 1.8e9};
  m.across_hosts = {6e-4, 1e-4, 0.1e9};
  m.copy_start_s = 2e-6;
  m.copy_bytes_per_s = 5e9;
  return m;
}

std::vector<Link> links_of(const DeviceMesh& mesh, const Machine& machine) {
  require(machine.ranks_per_host >= 1, "a machine with ", machine.ranks_per_host,
          " ranks per host");
  std::vector<Link> links;
  const auto ranks = mesh.ranks();
  const bool consecutive = count_up(ranks);
  int64_t stride = mesh.size();
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const int64_t block = stride;
    stride /= mesh.size(axis);
    const bool within = consecutive
                            ? runs_stay_in_host(ranks, block, stride, machine.ranks_per_host)
                            : groups_stay_in_host(ranks, block, stride, machine.ranks_per_host);
    links.push_back(within ? machine.within_host : machine.across_hosts);
  }
  return links;
}

double all_gather_seconds(const Link& link, int64_t ranks, int64_t gathered_bytes) {
  if (ranks <= 1) return 0;
  return link.start_s + link.hop_s * static_cast<double>(tree_hops(ranks)) +
         share(ranks, gathered_bytes) / link.bytes_per_s;
}

double reduce_scatter_seconds(const Link& link, int64_t ranks, int64_t input_bytes) {
  return all_gather_seconds(link, ranks, input_bytes);
}

double all_reduce_seconds(const Link& link, int64_t ranks, int64_t bytes) {
  if (ranks <= 1) return 0;
  return link.start_s + 2 * (link.hop_s * static_cast<double>(tree_hops(ranks)) +
                             share(ranks, bytes) / link.bytes_per_s);
}

double all_to_all_seconds(const Link& link, int64_t ranks, int64_t local_bytes) {
  if (ranks <= 1) return 0;
  return link.start_s + link.hop_s * static_cast<double>(ranks - 1) +
         share(ranks, local_bytes) / link.bytes_per_s;
}

double copy_seconds(const Machine& machine, int64_t bytes) {
  return machine.copy_start_s + static_cast<double>(bytes) / machine.copy_bytes_per_s;
}

Machine default_machine(const std::string& device) {
  std::lock_guard lock(the_default().mutex);
  const auto found = the_default().by_device.find(device);
  return found == the_default().by_device.end() ? Machine{} : found->second;
}

void set_default_machine(const std::string& device, const Machine& machine) {
  std::lock_guard lock(the_default().mutex);
  the_default().by_device[device] = machine;
  ++versions;
}

uint64_t default_machine_version() { return versions.load(std::memory_order_acquire); }

}  // namespace tessera::cost
