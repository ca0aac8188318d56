#include "tessera/dtensor/dispatch/decide/row_kernel.h"

#include <map>
#include <mutex>
#include <string>

namespace tessera::dtensor {
namespace {

struct RowKernels {
  std::mutex mutex;
  std::map<std::string, RunRow, std::less<>> by_name;
};

RowKernels& row_kernels() {
  static auto* instance = new RowKernels();  // kernels may run during process exit
  return *instance;
}

}  // namespace

std::span<c10::IValue> KernelCall::args() const {
  const size_t count = op.schema().arguments().size();
  return std::span(stack).last(count);
}

c10::IValue KernelCall::arg(std::string_view of_name) const {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == of_name) return args()[i];
  }
  return {};
}

at::Tensor KernelCall::tensor(std::string_view of_name) const {
  const c10::IValue value = arg(of_name);
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

void add_row_kernel(std::string_view name, RunRow run, rules::KernelComm comm,
                    rules::KernelRows rows) {
  {
    std::lock_guard lock(row_kernels().mutex);
    row_kernels().by_name.insert_or_assign(std::string(name), std::move(run));
  }
  rules::enable_kernel(name, comm, std::move(rows));
}

const RunRow* find_row_kernel(std::string_view name) {
  std::lock_guard lock(row_kernels().mutex);
  const auto it = row_kernels().by_name.find(name);
  return it == row_kernels().by_name.end() ? nullptr : &it->second;
}

}  // namespace tessera::dtensor
