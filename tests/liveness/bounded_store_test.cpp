// Store calls that end in time, whatever the store does.
#include "tessera/liveness/bounded_store.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tessera/liveness/signed_store.h"
#include "tessera/liveness/store_text.h"

namespace tessera::comm {
namespace bounded_store_test {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<uint8_t>;

/// Answers nothing while it is stopped, as a host that got SIGSTOP.
class StoppableStore final : public c10d::Store {
 public:
  void stop(bool on) {
    std::lock_guard lock(mutex_);
    stopped_ = on;
    changed_.notify_all();
  }

  c10::intrusive_ptr<Store> clone() override {
    answer();
    return c10::intrusive_ptr<Store>::unsafe_reclaim_from_nonowning(this);
  }
  using Store::set;
  void set(const std::string& key, const Bytes& value) override { answer().set(key, value); }
  using Store::compareSet;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return answer().compareSet(key, expected, desired);
  }
  Bytes get(const std::string& key) override { return answer().get(key); }
  int64_t add(const std::string& key, int64_t value) override { return answer().add(key, value); }
  bool deleteKey(const std::string& key) override { return answer().deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return answer().check(keys); }
  int64_t getNumKeys() override { return answer().getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { answer().wait(keys); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& t) override {
    answer().wait(keys, t);
  }

 private:
  Store& answer() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !stopped_; });
    return *store_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  c10::intrusive_ptr<Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

using Call = std::function<void(c10d::Store&)>;

using Calls = std::vector<std::pair<const char*, Call>>;

/// Stores have a barrier since torch 2.13.
template <typename Store>
Calls with_barrier(Calls all) {
  if constexpr (requires(Store & s) { s.barrier("b", 1, 10min); }) {
    all.emplace_back("barrier", [](Store& s) { s.barrier("b", 1, 10min); });
  }
  return all;
}

const Calls& calls() {
  static const Calls all = with_barrier<c10d::Store>({
      {"set", [](c10d::Store& s) { s.set("k", "v"); }},
      {"compareSet", [](c10d::Store& s) { s.compareSet("c", "", "v"); }},
      {"get", [](c10d::Store& s) { s.get("k"); }},
      {"add", [](c10d::Store& s) { s.add("n", 1); }},
      {"deleteKey", [](c10d::Store& s) { s.deleteKey("gone"); }},
      {"check", [](c10d::Store& s) { s.check({"k"}); }},
      {"getNumKeys", [](c10d::Store& s) { s.getNumKeys(); }},
      {"wait", [](c10d::Store& s) { s.wait({"k"}); }},
      {"wait with a limit", [](c10d::Store& s) { s.wait({"k"}, 10min); }},
      {"wait without one", [](c10d::Store& s) { s.wait({"k"}, c10d::Store::kNoTimeout); }},
      {"multiGet", [](c10d::Store& s) { s.multiGet({"k"}); }},
      {"multiSet", [](c10d::Store& s) { s.multiSet({"m"}, {Bytes{1}}); }},
      {"clone", [](c10d::Store& s) { s.clone(); }},
  });
  return all;
}

/// How long it takes to end; fails if it does not throw.
std::chrono::milliseconds time_to_throw(const Call& call, c10d::Store& store, const char* what) {
  const auto begin = Clock::now();
  EXPECT_THROW(call(store), c10::DistStoreError) << what;
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
}

TEST(BoundedStore, AnswersAsTheStoreBehindIt) {
  BoundedStore store(c10::make_intrusive<StoppableStore>(), 20s);
  for (const auto& [what, call] : calls()) EXPECT_NO_THROW(call(store)) << what;
  EXPECT_EQ(store.get_to_str("k"), "v");
  EXPECT_EQ(store.add("n", 2), 3);
  EXPECT_FALSE(store.check({"k", "nothing"}));
}

TEST(BoundedStore, EveryCallEndsAtTheTimeoutIfTheStoreIsStopped) {
  for (const auto& [what, call] : calls()) {
    const auto inner = c10::make_intrusive<StoppableStore>();
    inner->set("k", "v");
    BoundedStore store(inner, 100ms);
    inner->stop(true);
    const auto took = time_to_throw(call, store, what);
    EXPECT_GE(took, 99ms) << what;
    EXPECT_LT(took, 5s) << what;
    inner->stop(false);
  }
}

TEST(BoundedStore, AViewEndsEveryCallAtItsDeadline) {
  const auto inner = c10::make_intrusive<StoppableStore>();
  BoundedStore store(inner, 10min);
  const auto view = store.until(Clock::now() + 150ms);
  view->set("k", "v");
  inner->stop(true);
  for (const auto& [what, call] : calls()) {
    EXPECT_LT(time_to_throw(call, *view, what), 5s) << what;
  }
  inner->stop(false);
  EXPECT_EQ(store.get_to_str("k"), "v");  // it answers again to those who still ask
}

TEST(BoundedStore, AKeyThatDoesNotComeEndsTheWait) {
  BoundedStore store(c10::make_intrusive<c10d::HashStore>(), 100ms);
  EXPECT_THROW(store.get("nothing"), c10::DistStoreError);
  EXPECT_THROW(store.wait({"nothing"}, 20ms), c10::DistStoreError);
}

/// With a TCPStore the second thread would wait for the first, whose key it is to set.
TEST(BoundedStore, AThreadThatWaitsForAKeyKeepsNoOtherFromTheStore) {
  BoundedStore store(c10::make_intrusive<c10d::HashStore>(), 20s);
  auto waits = std::async(std::launch::async, [&] { return store.get_to_str("late"); });
  EXPECT_EQ(waits.wait_for(30ms), std::future_status::timeout);
  store.set("late", "here");
  EXPECT_EQ(waits.get(), "here");
}

TEST(BoundedStore, AForkedProcessMayNotUseItsParentsConnection) {
  auto store = std::make_unique<BoundedStore>(c10::make_intrusive<c10d::HashStore>(), 20s);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    bool threw = false;
    try {
      store->set("k", "v");
    } catch (const c10::DistStoreError&) {
      threw = true;
    }
    store.reset();  // does not wait for a thread that only the parent has
    _exit(threw ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(store->check({"k"}));
}

TEST(OpenWithin, GivesUpOnAConnectionThatTakesTooLong) {
  std::promise<void> never;
  const auto begin = Clock::now();
  const auto store = open_within(50ms, [waits = never.get_future().share()] {
    waits.wait();
    return BoundedStore::StorePtr();
  });
  EXPECT_FALSE(store.defined());
  EXPECT_LT(Clock::now() - begin, 5s);
  never.set_value();
  EXPECT_THROW(open_within(10s, []() -> BoundedStore::StorePtr { throw std::bad_alloc(); }),
               std::bad_alloc);
}

TEST(SignedStore, RanksOfOneJobReadEachOther) {
  const auto raw = c10::make_intrusive<c10d::HashStore>();
  SignedStore one(raw, "secret");
  const auto two = one.clone();
  one.set("k", "value");
  EXPECT_EQ(two->get_to_str("k"), "value");
  EXPECT_EQ(two->compareSet("k", "value", "other"), "other");
  EXPECT_EQ(one.compareSet("k", "value", "third"), "other");
  EXPECT_EQ(one.compareSet("new", "", "first"), "first");
  one.set("empty", "");
  EXPECT_EQ(two->get_to_str("empty"), "");
  EXPECT_EQ(two->multiGet({"k", "new"}),
            (std::vector<Bytes>{bytes_of("other"), bytes_of("first")}));
  EXPECT_NE(text_of(raw->get("k")), "other");
}

TEST(SignedStore, AValueOfAStrangerIsAnError) {
  const c10::intrusive_ptr<c10d::Store> raw = c10::make_intrusive<c10d::HashStore>();
  SignedStore store(raw, "secret");
  raw->set("start/outcome", "same");
  EXPECT_THROW(store.get("start/outcome"), c10::DistStoreError);
  SignedStore(raw, "another secret").set("other", "value");
  EXPECT_THROW(store.get("other"), c10::DistStoreError);
  store.set("a", "value");
  raw->set("b", raw->get("a"));  // a rank's word, but not about this
  EXPECT_THROW(store.get("b"), c10::DistStoreError);
  EXPECT_THROW(store.compareSet("b", "", "x"), c10::DistStoreError);
}

}  // namespace bounded_store_test
}  // namespace tessera::comm
