#include "tessera/collective/work_list.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <atomic>
#include <memory>

namespace tessera::comm {
namespace {

class AllOf final : public c10d::Work {
 public:
  explicit AllOf(std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : c10d::Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    return std::ranges::all_of(works_, [](const auto& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::ranges::all_of(works_, [](const auto& work) { return work->isSuccess(); });
  }
  std::exception_ptr exception() const override {
    for (const auto& work : works_) {
      if (auto error = work->exception()) return error;
    }
    return nullptr;
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const auto& work : works_) std::ranges::copy(work->result(), std::back_inserter(all));
    return all;
  }
  void synchronize() override {
    for (const auto& work : works_) work->synchronize();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    bool ok = true;
    for (const auto& work : works_) ok = work->wait(timeout) && ok;
    return ok;
  }
  void blockCurrentStream() override { wait(kNoTimeout); }
  void abort() override {
    for (const auto& work : works_) work->abort();
  }

  /// Completes when the last part does; the first error wins.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto all = make_tensor_list_future(result());
    auto left = std::make_shared<std::atomic<size_t>>(works_.size());
    if (works_.empty()) all->markCompleted(c10::IValue(std::vector<at::Tensor>()));
    for (const auto& work : works_) {
      work->getFuture()->addCallback([all, left, value = result()](c10::ivalue::Future& part) {
        if (part.hasError()) {
          all->setErrorIfNeeded(part.exception_ptr());
        } else if (left->fetch_sub(1) == 1) {
          all->markCompleted(c10::IValue(value));
        }
      });
    }
    return all;
  }

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

class DoneWork final : public c10d::Work {
 public:
  DoneWork(c10d::OpType op, std::vector<at::Tensor> outputs)
      : c10d::Work(-1, op), outputs_(std::move(outputs)) {}

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  std::exception_ptr exception() const override { return nullptr; }
  int sourceRank() const override { return -1; }
  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override {}
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  void blockCurrentStream() override {}
  void abort() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = make_tensor_list_future(outputs_);
    future->markCompleted(c10::IValue(outputs_));
    return future;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return getFuture(); }

 private:
  std::vector<at::Tensor> outputs_;
};

}  // namespace

c10::intrusive_ptr<c10d::Work> all_of(std::vector<c10::intrusive_ptr<c10d::Work>> works) {
  return c10::make_intrusive<AllOf>(std::move(works));
}

c10::intrusive_ptr<c10d::Work> done_work(c10d::OpType op, std::vector<at::Tensor> outputs) {
  return c10::make_intrusive<DoneWork>(op, std::move(outputs));
}

bool is_done_work(const c10d::Work& work) { return typeid(work) == typeid(DoneWork); }

c10::intrusive_ptr<c10::ivalue::Future> make_tensor_list_future(
    const std::vector<at::Tensor>& value) {
  std::vector<c10::Device> devices;
  for (const auto& t : value) {
    if (!t.device().is_cpu() && !t.device().is_meta()) devices.push_back(t.device());
  }
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), std::move(devices));
}

}  // namespace tessera::comm
