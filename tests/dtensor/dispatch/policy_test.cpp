// Communication that the caller did not write is refused where the caller forbids it: whichever way
// an op takes, and on whichever thread autograd runs it.
#include "tessera/dtensor/policy.h"

#include <ATen/Functions.h>
#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <thread>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace policy_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::whole_numbers;

/// Runs `call` where communication is forbidden; true if it was refused. Nothing may be sent then.
template <typename Call>
bool is_refused(const Call& call) {
  const CommPolicy explicit_only(ImplicitComm::forbid);
  comm::Recorder recorder(*comm::current_world());
  try {
    call();
  } catch (const NotSupported& error) {
    EXPECT_NE(std::string(error.what()).find("forbidden"), std::string::npos) << error.what();
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
    return true;
  }
  EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "") << "not refused";
  return false;
}

TEST(CommPolicy, HoldsForOpsThatReadWholeTensors) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({4, 6});
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    const at::Tensor columns = distribute_tensor(full, mesh, {Shard(1)});
    const at::Tensor whole = distribute_tensor(full, mesh, {Replicate()});
    const at::Tensor partial = from_local(full, mesh, {Partial()});
    const at::Tensor bounds = distribute_tensor(at::tensor({1, 3}, at::kLong), mesh, {Shard(0)});
    EXPECT_TRUE(is_refused([&] { at::equal(x, x); }));
    EXPECT_TRUE(is_refused([&] { at::equal(x, columns); }));
    EXPECT_TRUE(is_refused([&] { at::equal(partial, partial); }));
    EXPECT_TRUE(is_refused([&] { at::equal(whole, x); }));
    EXPECT_TRUE(is_refused([&] { at::allclose(x, x); }));
    EXPECT_TRUE(is_refused([&] { x.as_strided({2, 2}, {6, 1}); }));
    EXPECT_TRUE(is_refused([&] { x.sum().item(); }));
    EXPECT_TRUE(is_refused([&] { at::is_nonzero(x.sum()); }));
    EXPECT_TRUE(is_refused([&] { at::tensor_split(whole, bounds, 0); }));
    // Copies that every rank has need no word from the others.
    EXPECT_FALSE(is_refused([&] { EXPECT_TRUE(at::equal(whole, whole)); }));
    EXPECT_FALSE(is_refused([&] { whole.as_strided({2, 2}, {6, 1}); }));
    EXPECT_TRUE(at::equal(x, columns)) << "allowed again";
  });
}

/// What autograd does with a device thread that runs part of a backward().
TEST(CommPolicy, HoldsOnThreadsThatTakeOverTheCallersState) {
  const auto elsewhere = [](const auto& look) {
    const at::ThreadLocalState state;
    std::thread([&] {
      const at::ThreadLocalStateGuard guard(state);
      look();
    }).join();
  };
  {
    const CommPolicy outer(ImplicitComm::forbid);
    const StrictRules strict;
    const ImplicitReplication replication;
    elsewhere([] {
      EXPECT_EQ(CommPolicy::current(), ImplicitComm::forbid);
      EXPECT_TRUE(StrictRules::current());
      EXPECT_TRUE(ImplicitReplication::current());
      const CommPolicy inner(ImplicitComm::warn);
      EXPECT_EQ(CommPolicy::current(), ImplicitComm::warn);
      EXPECT_TRUE(StrictRules::current());
    });
    EXPECT_EQ(CommPolicy::current(), ImplicitComm::forbid);
    {
      const CommPolicy inner(ImplicitComm::allow);
      elsewhere([] { EXPECT_EQ(CommPolicy::current(), ImplicitComm::allow); });
    }
    EXPECT_EQ(CommPolicy::current(), ImplicitComm::forbid);
  }
  elsewhere([] {
    EXPECT_EQ(CommPolicy::current(), ImplicitComm::allow);
    EXPECT_FALSE(StrictRules::current());
    EXPECT_FALSE(ImplicitReplication::current());
  });
}

TEST(CommPolicy, RefusesBeforeGradientsAreUnscaled) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor grad = distribute_tensor(at::ones({4}), mesh, {Shard(0)});
    at::Tensor found = at::zeros({});
    EXPECT_TRUE(is_refused([&] {
      at::_amp_foreach_non_finite_check_and_unscale_({grad}, found, at::full({}, 0.5f));
    }));
    EXPECT_EQ(to_local(grad).sum().item<float>(), 2) << "nothing was written";
  });
}

void fill_by_place(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  for (int i = 10; i-- > 0;) torch::jit::pop(*stack).toTensor().fill_(i);
}

/// Ten arguments that an op writes to.
TEST(Dispatch, WritesToAsManyArgumentsAsASchemaNames) {
  torch::Library library(torch::Library::FRAGMENT, "policy_test", std::nullopt, __FILE__, __LINE__);
  std::string arguments;
  for (int i = 0; i < 10; ++i) {
    arguments += std::string(i == 0 ? "" : ", ") + "Tensor(" + static_cast<char>('a' + i) + "!) x" +
                 std::to_string(i);
  }
  library.def(("fill_ten(" + arguments + ") -> ()").c_str());
  library.impl("fill_ten",
               torch::dispatch(c10::DispatchKey::CPU,
                               torch::CppFunction::makeFromBoxedFunction<fill_by_place>()));
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    torch::jit::Stack stack;
    std::vector<at::Tensor> written;
    for (int i = 0; i < 10; ++i) {
      written.push_back(distribute_tensor(whole_numbers({4, 2}), mesh, {Shard(0)}));
      stack.emplace_back(written.back());
    }
    c10::Dispatcher::singleton().findSchemaOrThrow("policy_test::fill_ten", "").callBoxed(&stack);
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(at::equal(full_tensor(written[static_cast<size_t>(i)]),
                            at::full({4, 2}, static_cast<double>(i), at::kDouble)));
    }
  });
}

}  // namespace policy_test
}  // namespace tessera
