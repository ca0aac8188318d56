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

std::string ranks_text(std::span<const int> ranks) {
  std::string text;
  for (size_t begin = 0; begin < ranks.size();) {
    // The longest run with one stride from here; two ranks are listed, not written as a run.
    size_t end = begin + 1;
    const int stride = end < ranks.size() ? ranks[end] - ranks[begin] : 0;
    while (stride > 0 && end < ranks.size() && ranks[end] - ranks[end - 1] == stride) ++end;
    if (begin > 0) text += ',';
    text += std::to_string(ranks[begin]);
    if (end - begin <= 2) {
      ++begin;
      continue;
    }
    text += '-' + std::to_string(ranks[end - 1]);
    if (stride > 1) text += ':' + std::to_string(stride);
    begin = end;
  }
  return text;
}

}  // namespace tessera::comm
