#include "tessera/threads/thread_work.h"

namespace tessera::comm {
ThreadWork::ThreadWork(std::shared_ptr<ThreadHub> hub, std::shared_ptr<Round> round, size_t seat,
                       Collective what, std::vector<at::Tensor> outputs,
                       std::chrono::milliseconds timeout)
    : c10d::Work(-1, c10d_op_type(what)),
      hub_(std::move(hub)),
      round_(std::move(round)),
      seat_(seat),
      outputs_(std::move(outputs)),
      timeout_(timeout) {}

bool ThreadWork::isCompleted() { return round_->is_done(); }

bool ThreadWork::isSuccess() const { return round_->is_done() && !round_->failure; }

std::exception_ptr ThreadWork::exception() const {
  return round_->is_done() && round_->failure ? round_->failure->exception() : nullptr;
}

int ThreadWork::sourceRank() const { return round_->source_index(); }

std::vector<at::Tensor> ThreadWork::result() { return outputs_; }

void ThreadWork::synchronize() {
  if (isSuccess()) round_->finished.block_current_streams();
}

bool ThreadWork::wait(std::chrono::milliseconds timeout) {
  std::optional<std::chrono::milliseconds> limit;
  if (timeout > kNoTimeout) limit = timeout;  // c10d: 0 (and its "unset", -1) mean no limit
  hub_->wait(*round_, seat_, limit, timeout_);
  synchronize();
  return true;
}

void ThreadWork::blockCurrentStream() { wait(kNoTimeout); }

void ThreadWork::abort() { hub_->abort(*round_, seat_); }

c10::intrusive_ptr<c10::ivalue::Future> ThreadWork::getFuture() {
  return hub_->future(*round_, seat_, outputs_);
}

c10::intrusive_ptr<c10::ivalue::Future> ThreadWork::getFutureResult() { return getFuture(); }

uint64_t ThreadWork::getSequencenumber() const { return round_->sequence; }

}  // namespace tessera::comm
