#include "tessera/fsdp/step_log.h"

namespace tessera::fsdp {

void StepLog::record(bool on) {
  recording_ = on;
  events_.clear();
}

void StepLog::note(What what, When when, size_t of, Clock::time_point at) {
  if (recording_) events_.push_back({what, when, of, backward_, at});
}

void StepLog::add(What what, Clock::duration under_way, Clock::duration exposed) {
  Total& total = what == What::gather ? gathers_ : reductions_;
  ++total.messages;
  total.under_way += under_way;
  total.exposed += exposed;
}

MessageTimes::MessageTimes(std::shared_ptr<StepLog> log, StepLog::What what, size_t of)
    : log_(std::move(log)), what_(what), of_(of), called_(StepLog::Clock::now()) {}

void MessageTimes::issued() {
  log_->note(what_, StepLog::When::starts, of_, called_);
  calling_ = StepLog::Clock::now() - called_;
}

void MessageTimes::awaited() {
  awaited_ = StepLog::Clock::now();
  log_->note(what_, StepLog::When::awaited, of_, awaited_);
}

void MessageTimes::ended() {
  const auto now = StepLog::Clock::now();
  log_->note(what_, StepLog::When::ends, of_, now);
  log_->add(what_, now - called_, calling_ + (now - awaited_));
}

}  // namespace tessera::fsdp
