#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

namespace tessera::test {

/// The largest sum of bytes that the calling thread held at once, of those it allocated meanwhile.
class PeakBytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t held_ = 0;
  int64_t peak_ = 0;
};

template <class Call>
int64_t peak_bytes_of(Call call) {
  const auto peak = std::make_shared<PeakBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, peak);
  call();
  return peak->peak();
}

}  // namespace tessera::test
