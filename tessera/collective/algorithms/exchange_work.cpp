#include "tessera/collective/algorithms/exchange_work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "tessera/base/text.h"
#include "tessera/collective/may_block.h"
#include "tessera/collective/timed_out.h"

namespace tessera::comm {

using std::chrono::milliseconds;

CallerWork::CallerWork(c10::intrusive_ptr<c10::intrusive_ptr_target> owner,
                       std::unique_ptr<Algorithm> job, std::shared_ptr<Exchange> exchange,
                       uint64_t sequence)
    : Work(exchange->rank(), job->type),
      owner_(std::move(owner)),
      job_(std::move(job)),
      exchange_(std::move(exchange)),
      sequence_(sequence) {
  job_->begin(*exchange_);
}

/// Dropped without a wait: the peers still depend on this rank's part.
CallerWork::~CallerWork() {
  try {
    complete();
  } catch (const std::exception&) {  // a destructor cannot report it
  }
}

bool CallerWork::complete() {
  const MayBlock others_may_run;
  std::lock_guard lock(waiting_);
  if (!isCompleted()) {
    std::exception_ptr error;
    try {
      job_->finish(*exchange_);
    } catch (...) {
      error = std::current_exception();
    }
    finish(error);
  }
  if (const auto error = exception()) std::rethrow_exception(error);
  return true;
}

bool CallerWork::wait_looking(milliseconds after, std::function<void()> look) {
  if (!isCompleted()) exchange_->when_late(after, std::move(look));
  return complete();
}

bool CallerWork::wait(milliseconds timeout) {
  if (timeout == kNoTimeout) return complete();
  return wait_looking(timeout, [timeout] { throw TimedOut(timeout); });
}

c10::intrusive_ptr<c10::ivalue::Future> CallerWork::getFuture() {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  try {
    complete();
    future->markCompleted(c10::IValue(job_->outputs));
  } catch (...) {
    future->setError(std::current_exception());
  }
  return future;
}

}  // namespace tessera::comm
