#include "tessera/comm/group.h"

#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tessera/base/errors.h"

namespace tessera::comm {
namespace {

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(int index, int size,
                                                          const std::string& name,
                                                          const Backends& backends) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(index, size);
  for (const auto& [device, backend] : backends) {
    const auto type = c10d::ProcessGroup::strToBackendType(backend->getBackendName());
    group->setBackend(device, type, backend);
    if (device == backends.front().first) group->setDefaultBackend(type);
  }
  group->setGroupDesc(name);
  return group;
}

constexpr int kMostWorlds = 1000;  // of one name, alive in one process

/// Registers `group` as `name`, or as "name#2" and so on while meshes keep a group of an earlier
/// world of that name. The registry has no query, so a name that is taken shows as an error.
std::string register_as(const std::string& name,
                        const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  for (int number = 1;; ++number) {
    const std::string candidate = number == 1 ? name : join_text(name, "#", number);
    group->setGroupName(candidate);
    try {
      c10d::register_process_group(candidate, group);
      return candidate;
    } catch (const c10::Error&) {
      if (number == kMostWorlds) throw;
    }
  }
}

}  // namespace

Group::Group(std::vector<int> ranks, int index, const std::string& name, const Backends& backends)
    : ranks_(std::move(ranks)),
      index_(index),
      process_group_(make_process_group(index_, size(), name, backends)),
      name_(register_as(name, process_group_)) {
  for (const auto& [device, backend] : backends) {
    by_device_[static_cast<size_t>(device)] = process_group_->getBackend(device).get();
  }
}

/// torch.distributed's destroy_process_group empties the registry, after which another group may
/// have the name.
Group::~Group() {
  try {
    if (c10d::resolve_process_group(name_) == process_group_) c10d::unregister_process_group(name_);
  } catch (const c10::Error&) {  // not registered any more
  }
}

void Group::no_backend(c10::DeviceType device) const {
  std::string served;
  for (size_t i = 0; i < by_device_.size(); ++i) {
    if (by_device_[i] == nullptr) continue;
    served += served.empty() ? "" : ", ";
    served += c10::DeviceTypeName(static_cast<c10::DeviceType>(i), /*lower_case=*/true);
  }
  throw NotSupported(join_text("group ", name_, " serves ", served, "; a tensor is on ",
                               c10::DeviceTypeName(device, /*lower_case=*/true)));
}

}  // namespace tessera::comm
