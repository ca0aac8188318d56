#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/mesh/device_mesh.h"

/// What moving bytes costs: a latency/bandwidth model of the links under each mesh axis.
///
/// A collective over n ranks costs a start, ceil(log2 n) hops, and the bytes a rank must send and
/// receive over the link's bandwidth:
///
///   all_gather        (n-1)/n of the gathered bytes        reduce_scatter   the same
///   all_reduce        twice that, twice the hops
///   all_to_all        (n-1)/n of the local bytes, n-1 messages
///
/// The numbers rank alternatives; they are no promise in seconds. Defaults are those of a host with
/// 8 accelerators; a CPU cluster or a measured machine sets its own.
namespace tessera::cost {

struct Link {
  double start_s = 0;      ///< to get a collective going
  double hop_s = 0;        ///< each further rank on the critical path
  double bytes_per_s = 1;  ///< one direction, one rank
  bool operator==(const Link&) const = default;
};

/// The link that a collective over several axes sees: the slowest of each part.
Link slowest(std::span<const Link> links);

struct Machine {
  int ranks_per_host = 8;
  Link within_host{5e-6, 1e-6, 200e9};
  Link across_hosts{12e-6, 4e-6, 25e9};
  double copy_start_s = 1e-6;  ///< a local kernel
  double copy_bytes_per_s = 1e12;
  bool operator==(const Machine&) const = default;

  /// A few cores, processes on one host as measured (machine.cpp); other hosts are a guess.
  static Machine cpu_processes();
};

/// One link for each axis of the mesh: within a host if every group of the axis stays in one.
std::vector<Link> links_of(const DeviceMesh& mesh, const Machine& machine);

double all_gather_seconds(const Link& link, int64_t ranks, int64_t gathered_bytes);
double reduce_scatter_seconds(const Link& link, int64_t ranks, int64_t input_bytes);
double all_reduce_seconds(const Link& link, int64_t ranks, int64_t bytes);
double all_to_all_seconds(const Link& link, int64_t ranks, int64_t local_bytes);
double copy_seconds(const Machine& machine, int64_t bytes);

/// The machine that plans for meshes of a device ("cpu", "cuda", ...) are priced for when none is
/// given. Setting it makes cached plans stale.
Machine default_machine(const std::string& device);
void set_default_machine(const std::string& device, const Machine& machine);
/// Grows by one with every set_default_machine.
uint64_t default_machine_version();

}  // namespace tessera::cost
