#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/api.h"

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace tessera::comm {

/// The backend of each device type; one backend may serve several.
using Backends = std::vector<std::pair<c10::DeviceType, c10::intrusive_ptr<c10d::Backend>>>;

/// A set of ranks that communicate, from the point of view of one of them. Wraps an ordinary
/// c10d::ProcessGroup, registered under `name()` during the lifetime of the Group, so
/// `_c10d_functional` ops and direct c10d calls use the same connections, recorder and checks as
/// the library.
class TESSERA_API Group {
 public:
  /// `name` is that of the group in its world; name() differs if it is taken in this process.
  Group(std::vector<int> ranks, int index, const std::string& name, const Backends& backends);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  std::span<const int> ranks() const { return ranks_; }  ///< world ranks, in group order
  int size() const { return static_cast<int>(ranks_.size()); }
  int index() const { return index_; }  ///< my index in ranks()
  const std::string& name() const { return name_; }
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const { return process_group_; }

  /// The backend for tensors on `device`, which exec calls directly, without c10d's dispatcher. An
  /// array look-up; throws NotSupported if this group does not serve the device.
  c10d::Backend& backend(c10::DeviceType device) const {
    c10d::Backend* found = by_device_[static_cast<size_t>(device)];
    if (found == nullptr) [[unlikely]] {
      no_backend(device);
    }
    return *found;
  }

 private:
  [[noreturn]] void no_backend(c10::DeviceType device) const;

  std::vector<int> ranks_;
  int index_;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;  // owns the backends
  std::string name_;
  std::array<c10d::Backend*, c10::COMPILE_TIME_MAX_DEVICE_TYPES> by_device_{};
};

}  // namespace tessera::comm
