#include "tessera/threads/thread_backend.h"

#include "tessera/threads/thread_work.h"

namespace tessera::comm {

ThreadBackend::ThreadBackend(std::shared_ptr<ThreadHub> hub, std::span<const int> ranks, int index,
                             std::chrono::milliseconds timeout)
    : CallBackend(index, static_cast<int>(ranks.size()), timeout),
      hub_(std::move(hub)),
      channel_(hub_->channel(ranks)) {}

ThreadBackend::WorkPtr ThreadBackend::post(Call call, std::chrono::milliseconds timeout) {
  const Collective what = call.what;
  call.history = history_;
  Tensors outputs(call.outputs.begin(), call.outputs.end());
  auto round = hub_->post(channel_, rank_, std::move(call));
  return c10::make_intrusive<ThreadWork>(hub_, std::move(round), static_cast<size_t>(rank_), what,
                                         std::move(outputs), timeout);
}

ThreadBackend::WorkPtr ThreadBackend::post_message(Call call, int peer, int tag,
                                                   std::chrono::milliseconds timeout) {
  const Collective what = call.what;
  Tensors outputs(call.outputs.begin(), call.outputs.end());
  auto round = hub_->post_message(channel_, rank_, peer, tag, std::move(call));
  return c10::make_intrusive<ThreadWork>(hub_, std::move(round), what == Collective::send ? 0 : 1,
                                         what, std::move(outputs), timeout);
}

uint64_t ThreadBackend::getSequenceNumberForGroup() { return hub_->posted(channel_, rank_); }

c10d::ErrorType ThreadBackend::getError() {
  return hub_->first_failure() ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::SUCCESS;
}

void ThreadBackend::abort() { hub_->abort(channel_, rank_); }

c10::intrusive_ptr<c10d::Backend> solo_backend() {
  const int only = 0;
  auto hub = std::make_shared<ThreadHub>(1, "solo", /*detect_deadlock=*/false);
  return c10::make_intrusive<ThreadBackend>(std::move(hub), std::span<const int>(&only, 1), 0,
                                            kBackendDefaultTimeout);
}

}  // namespace tessera::comm
