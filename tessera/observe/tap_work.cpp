#include "tessera/observe/tap_work.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include "tessera/collective/algorithms/exchange_work.h"
#include "tessera/collective/may_block.h"

namespace tessera::comm {
namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(1000);

[[noreturn]] void rethrow_translated(const std::exception_ptr& error, const TapContext& context,
                                     const TappedCall& call, CallPhase phase) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    rethrow_as_tessera(context, call, phase);
  }
}

}  // namespace

TapWork::TapWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<const TapContext> context,
                 TappedCall call, std::shared_ptr<EventRecord> record)
    : Work(context->group->index, inner->retrieveOpType()),
      inner_(std::move(inner)),
      context_(std::move(context)),
      call_(std::move(call)),
      record_(std::move(record)) {}

bool TapWork::isCompleted() {
  const bool completed = inner_->isCompleted();
  if (completed && record_) ended(inner_->isSuccess());
  return completed;
}

std::exception_ptr TapWork::exception() const {
  auto error = inner_->exception();
  if (!error) return error;
  {
    std::lock_guard lock(mutex_);
    if (error_) return error_;
  }
  try {
    rethrow_translated(error, *context_, call_, CallPhase::query);
  } catch (...) {
    return std::current_exception();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> TapWork::getFuture() {
  auto inner = inner_->getFuture();
  if (!inner) return inner;
  // A call that ended without error is returned as it is, with the backend's stream information.
  if (inner->completed() && !inner->hasError()) return inner;
  const auto translate = [context = context_, call = call_](c10::ivalue::Future& parent) {
    if (parent.hasError()) {
      rethrow_translated(parent.exception_ptr(), *context, call, CallPhase::wait);
    }
    return parent.value();
  };
  return inner->then(translate, inner->elementType());
}

void TapWork::synchronize() {
  const MayBlock others_may_run;
  try {
    const EventRecord::ExposedTimer exposed(record_.get());
    inner_->synchronize();
  } catch (...) {
    rethrow_as_tessera(*context_, call_, CallPhase::wait);
  }
}

bool TapWork::wait(std::chrono::milliseconds timeout) {
  const MayBlock others_may_run;
  try {
    const bool ok = [&] {
      const EventRecord::ExposedTimer exposed(record_.get());
      return wait_inner(timeout);
    }();
    ended(ok);
    return ok;
  } catch (...) {
    ended(false);
    const auto phase = inner_->isCompleted() ? CallPhase::wait : CallPhase::pause;
    try {
      rethrow_as_tessera(*context_, call_, phase);
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (phase == CallPhase::wait) error_ = std::current_exception();
      throw;
    }
  }
}

/// Splits an unlimited wait, on a backend that allows it, into pieces: a rank that waits long
/// checks whether its peers wait in another call or gave up, instead of finding out only at the
/// timeout.
bool TapWork::wait_inner(std::chrono::milliseconds timeout) {
  auto piece = context_->look_after;
  if (timeout != kNoTimeout || piece.count() == 0 || call_.sequence == 0) {
    return inner_->wait(timeout);
  }
  if (auto* patient = dynamic_cast<PollingWork*>(inner_.get())) {
    return patient->wait_looking(piece, [this] { look_around(); });
  }
  for (;;) {
    try {
      return inner_->wait(piece);
    } catch (const c10::Error&) {
      if (const auto error = inner_->exception()) std::rethrow_exception(error);
      if (inner_->isCompleted()) return inner_->wait(kNoTimeout);  // it just did
      // The work continues, only this wait ended.
    }
    look_around();
    piece = std::min(piece, kLookAgain);  // the others post their calls at about the same time
  }
}

void TapWork::look_around() const {
  if (context_->state->aborted) throw std::runtime_error("this rank closed its links");
  check_for_failures(*context_, call_);
}

}  // namespace tessera::comm
