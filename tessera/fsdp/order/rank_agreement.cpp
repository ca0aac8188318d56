#include "tessera/fsdp/order/rank_agreement.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/fsdp/buffers/collectives.h"
#include "tessera/observe/call_site.h"

namespace tessera::fsdp {
namespace {

/// Not at::empty, which a transform of functions (torch.func) would wrap: it has no memory then.
at::Tensor buffer(int64_t size, at::ScalarType type) {
  return at::Tensor(at::detail::empty_cpu({size}, type));
}

/// Blocks of the size of `mine`, one per rank, in rank order.
at::Tensor gathered(const at::Tensor& mine, const comm::Group& group) {
  at::Tensor all = buffer(mine.numel() * group.size(), mine.scalar_type());
  at::Tensor sent = mine;
  const comm::CallSite site({.op = kSite});
  group.backend(c10::DeviceType::CPU)._allgather_base(all, sent)->wait();
  return all;
}

constexpr std::string_view kWhatToDo =
    ". All ranks must take part in each backward while set_reduce_unused_parameters is on. To the "
    "loss of a rank that uses no parameter, or whose batch is left out, add 0 * p.sum() of any "
    "parameter p, and call backward; forwards that are not for training belong under no_grad";

std::string names_of(std::span<const int> ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return out;
}

}  // namespace

void check_same_backward(std::span<const BackwardEnd> ends, std::span<const int> ranks) {
  for (size_t group = 0; group < ends[0].groups.size(); ++group) {
    std::vector<int> reducing, accumulating;
    bool took_part = false;
    for (size_t i = 0; i < ends.size(); ++i) {
      const int flags = ends[i].groups[group];
      took_part = took_part || (flags & BackwardEnd::kTookPart) != 0;
      if ((flags & BackwardEnd::kReduces) != 0) reducing.push_back(ranks[i]);
      if ((flags & BackwardEnd::kAccumulates) != 0) accumulating.push_back(ranks[i]);
    }
    if (!took_part || reducing.empty() || accumulating.empty()) continue;
    throw InvalidArgument(join_text(
        "backward on ", names_of(reducing), " reduces the gradients of group ", group, ", on ",
        names_of(accumulating),
        " it keeps them (set_requires_gradient_sync): a rank has skipped a backward of this step, "
        "or the ranks set it differently",
        kWhatToDo));
  }
  const auto fewest = std::ranges::min_element(
      ends, {}, [](const BackwardEnd& end) { return std::pair(end.abandoned, end.forwards); });
  std::vector<int> skipped;
  for (size_t i = 0; i < ends.size(); ++i) {
    const bool more = ends[i].abandoned > fewest->abandoned && ends[i].forwards > fewest->forwards;
    if (more) skipped.push_back(ranks[i]);
  }
  if (skipped.empty()) return;
  const auto other = static_cast<size_t>(fewest - ends.begin());
  const auto one = static_cast<size_t>(std::ranges::find(ranks, skipped.front()) - ranks.begin());
  throw InvalidArgument(join_text(
      names_of(skipped), skipped.size() == 1 ? " has" : " have",
      " skipped a backward: since the last one, rank ", ranks[one], " ran ", ends[one].forwards,
      " forwards (", ends[one].abandoned, " without a backward), rank ", ranks[other], " ran ",
      ends[other].forwards, " (", ends[other].abandoned, " without)", kWhatToDo));
}

RankAgreement::RankAgreement(const DeviceMesh& mesh) : mesh_(mesh) {
  if (mesh.size() == 1) return;
  group_ = comm::group_of(mesh);
}

std::vector<int64_t> RankAgreement::exchange(int64_t needed) const {
  std::vector<int64_t> all = {needed};
  if (group_ != nullptr) {
    at::Tensor mine = buffer(1, at::kLong);
    *mine.mutable_data_ptr<int64_t>() = needed;
    const at::Tensor received = gathered(mine, *group_);
    const auto* first = received.const_data_ptr<int64_t>();
    all.assign(first, first + received.numel());
  }
  std::vector<int64_t> groups;
  std::vector<int> ended, resharded;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] >= 0) {
      groups.push_back(all[i]);
    } else if (group_ != nullptr) {
      (all[i] == kResharded ? resharded : ended).push_back(group_->ranks()[i]);
    }
  }
  if (groups.empty() && !ended.empty() && !resharded.empty()) {
    throw InvalidArgument(join_text(names_of(ended), " ended a backward while ",
                                    names_of(resharded),
                                    " called reshard(): a rank has skipped a backward, or not all "
                                    "ranks called reshard()",
                                    kWhatToDo));
  }
  std::ranges::sort(groups);
  groups.erase(std::ranges::unique(groups).begin(), groups.end());
  return groups;
}

std::vector<uint8_t> RankAgreement::end_backward(const BackwardEnd& mine) const {
  if (group_ == nullptr) return mine.groups;
  const size_t groups = mine.groups.size();
  constexpr size_t kNumber = sizeof(int32_t);
  const size_t bytes = groups + 2 * kNumber;
  at::Tensor sent = buffer(static_cast<int64_t>(bytes), at::kByte);
  auto* out = sent.mutable_data_ptr<uint8_t>();
  std::memcpy(out, &mine.forwards, kNumber);
  std::memcpy(out + kNumber, &mine.abandoned, kNumber);
  std::ranges::copy(mine.groups, out + 2 * kNumber);
  const at::Tensor received = gathered(sent, *group_);
  const auto* in = received.const_data_ptr<uint8_t>();
  std::vector<BackwardEnd> ends(static_cast<size_t>(group_->size()));
  std::vector<uint8_t> any(groups, 0);
  for (BackwardEnd& end : ends) {
    std::memcpy(&end.forwards, in, kNumber);
    std::memcpy(&end.abandoned, in + kNumber, kNumber);
    end.groups.assign(in + 2 * kNumber, in + bytes);
    in += bytes;
    for (size_t i = 0; i < groups; ++i) any[i] = static_cast<uint8_t>(any[i] | end.groups[i]);
  }
  check_same_backward(ends, group_->ranks());
  return any;
}

}  // namespace tessera::fsdp
