#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/mesh/device_mesh.h"

/// Communication cost model: latency and bandwidth of the links of each mesh axis.
///
/// A collective over n ranks costs a start, ceil(log2 n) hops, and the bytes that a rank sends and
/// receives divided by the link's bandwidth:
///
///   all_gather        (n-1)/n of the gathered bytes        reduce_scatter   the same
///   all_reduce        twice that, twice the hops
///   all_to_all        (n-1)/n of the local bytes, n-1 messages
///
/// The numbers rank alternatives; they do not predict wall time. The defaults describe a host with
/// 8 accelerators; set others for a CPU cluster or a measured machine.
namespace tessera::cost {

struct TESSERA_API Link {
  double start_s = 0;      ///< start-up of a collective
  double hop_s = 0;        ///< per further rank on the critical path
  double bytes_per_s = 1;  ///< one direction, one rank
  bool operator==(const Link&) const = default;
};

/// The effective link of a collective over several axes: the slowest value of each field.
TESSERA_API Link slowest(std::span<const Link> links);

struct TESSERA_API Machine {
  int ranks_per_host = 8;
  Link within_host{5e-6, 1e-6, 200e9};
  Link across_hosts{12e-6, 4e-6, 25e9};
  double copy_start_s = 1e-6;  ///< a local kernel
  double copy_bytes_per_s = 1e12;
  bool operator==(const Machine&) const = default;

  /// A few cores, processes on one host as measured (machine.cpp); the values for other hosts are
  /// estimates.
  static Machine cpu_processes();
};

/// One link per mesh axis: within a host if every group of the axis is.
TESSERA_API std::vector<Link> links_of(const DeviceMesh& mesh, const Machine& machine);

TESSERA_API double all_gather_seconds(const Link& link, int64_t ranks, int64_t gathered_bytes);
TESSERA_API double reduce_scatter_seconds(const Link& link, int64_t ranks, int64_t input_bytes);
TESSERA_API double all_reduce_seconds(const Link& link, int64_t ranks, int64_t bytes);
TESSERA_API double all_to_all_seconds(const Link& link, int64_t ranks, int64_t local_bytes);
TESSERA_API double copy_seconds(const Machine& machine, int64_t bytes);

/// The machine used to price plans for meshes of a device ("cpu", "cuda", ...) if none is given.
/// Setting it makes cached plans stale.
TESSERA_API Machine default_machine(const std::string& device);
TESSERA_API void set_default_machine(const std::string& device, const Machine& machine);
/// Increases by one with every set_default_machine.
TESSERA_API uint64_t default_machine_version();

}  // namespace tessera::cost
