#include "tessera/fsdp/order/rank_agreement.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/comm/world.h"
#include "tessera/fsdp/buffers/collectives.h"
#include "tessera/observe/call_site.h"

namespace tessera::fsdp {
namespace {

/// Blocks of the size of `mine`, one per rank, in rank order.
at::Tensor gathered(const at::Tensor& mine, const comm::Group& group) {
  at::Tensor all = at::empty({mine.numel() * group.size()}, mine.options());
  at::Tensor sent = mine;
  const comm::CallSite site({.op = kSite});
  group.backend(c10::DeviceType::CPU)._allgather_base(all, sent)->wait();
  return all;
}

}  // namespace

RankAgreement::RankAgreement(const DeviceMesh& mesh) : mesh_(mesh) {
  if (mesh.size() == 1) return;
  group_ = comm::group_of(mesh);
}

std::vector<int64_t> RankAgreement::exchange(int64_t needed) const {
  std::vector<int64_t> out = {needed};
  if (group_ != nullptr) {
    at::Tensor mine = at::empty({1}, at::kLong);
    *mine.mutable_data_ptr<int64_t>() = needed;
    const at::Tensor all = gathered(mine, *group_);
    out.assign(all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel());
  }
  std::ranges::sort(out);
  out.erase(std::ranges::unique(out).begin(), out.end());
  std::erase(out, kEnded);
  return out;
}

std::vector<uint8_t> RankAgreement::any(const std::vector<uint8_t>& mine) const {
  if (group_ == nullptr || mine.empty()) return mine;
  at::Tensor sent = at::empty({static_cast<int64_t>(mine.size())}, at::kByte);
  std::memcpy(sent.mutable_data_ptr(), mine.data(), mine.size());
  const at::Tensor all = gathered(sent, *group_);
  const auto* answers = all.const_data_ptr<uint8_t>();
  std::vector<uint8_t> out(mine.size(), 0);
  for (int64_t i = 0; i < all.numel(); ++i) {
    uint8_t& answer = out[static_cast<size_t>(i) % out.size()];
    answer = static_cast<uint8_t>(answer | answers[i]);
  }
  return out;
}

}  // namespace tessera::fsdp
