#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "tessera/comm/group.h"

/// Passes buffers around the ranks of a group: every rank sends to the next and receives from the
/// previous one. Sizes may differ by rank and may be 0.
namespace tessera::parallel {

/// A buffer on its way. Must be waited for before the ranks' next rotation of the same buffer.
class Rotating {
 public:
  Rotating() = default;
  bool defined() const { return received_.defined(); }
  /// Blocks (CUDA: orders the current stream) and returns the received buffer.
  at::Tensor wait();

 private:
  friend class Ring;
  c10::intrusive_ptr<c10d::Work> work_;
  at::Tensor sent_;  // kept until the message has left
  at::Tensor received_;
};

class Ring {
 public:
  /// `site` names the caller for recorders.
  Ring(std::shared_ptr<const comm::Group> group, std::string axis, std::string_view site);

  int size() const { return group_ == nullptr ? 1 : group_->size(); }
  int index() const { return group_ == nullptr ? 0 : group_->index(); }

  /// Sends a flat buffer to the next rank; starts to receive one of `numel` elements.
  Rotating start(const at::Tensor& buffer, int64_t numel) const;

 private:
  std::shared_ptr<const comm::Group> group_;  // null: one rank
  std::string axis_;
  std::string_view site_;
};

}  // namespace tessera::parallel
