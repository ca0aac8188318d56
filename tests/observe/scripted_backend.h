#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

/// A backend that follows a script, for tests of what wraps a backend.
namespace tessera::comm {

/// Work that is done, or fails in wait.
class ScriptedWork : public c10d::Work {
 public:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
  ScriptedWork(std::function<void()> on_wait, FuturePtr future, std::exception_ptr error = {})
      : on_wait_(std::move(on_wait)), future_(std::move(future)), error_(std::move(error)) {}
  bool wait(std::chrono::milliseconds) override {
    if (on_wait_) on_wait_();
    return true;
  }
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  FuturePtr getFuture() override { return future_; }
  std::exception_ptr exception() const override { return error_; }

 private:
  std::function<void()> on_wait_;
  FuturePtr future_;
  std::exception_ptr error_;
};

class ScriptedBackend : public c10d::Backend {
 public:
  ScriptedBackend() : Backend(0, 2) {}

  std::function<void()> on_call;
  std::function<void()> on_wait;
  int calls = 0;
  bool returns_work = true;
  ScriptedWork::FuturePtr future;
  std::exception_ptr error;  // of its works

  const std::string getBackendName() const override { return "scripted"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    return next();
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor&, at::Tensor&,
                                                 const c10d::AllgatherOptions&) override {
    return next();
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&,
                                           const c10d::BroadcastOptions&) override {
    return next();
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>&, int, int) override {
    return next();
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override { return next(); }

 private:
  c10::intrusive_ptr<c10d::Work> next() {
    ++calls;
    if (on_call) on_call();
    if (!returns_work) return {};
    return c10::make_intrusive<ScriptedWork>(on_wait, future, error);
  }
};

}  // namespace tessera::comm
