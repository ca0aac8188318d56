#include "tessera/comm/group.h"

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
  group->setGroupName(name);
  group->setGroupDesc(name);
  return group;
}

}  // namespace

Group::Group(std::vector<int> ranks, int index, std::string name, const Backends& backends)
    : ranks_(std::move(ranks)),
      index_(index),
      name_(std::move(name)),
      process_group_(make_process_group(index_, size(), name_, backends)) {
  for (const auto& [device, backend] : backends) {
    by_device_[static_cast<size_t>(device)] = process_group_->getBackend(device).get();
  }
  c10d::register_process_group(name_, process_group_);
}

Group::~Group() { c10d::unregister_process_group(name_); }

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
