#include "tessera/liveness/bounded_store.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "tessera/base/text.h"
#include "tessera/collective/deadline.h"
#include "tessera/collective/may_block.h"
#include "tessera/liveness/poll.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;

constexpr milliseconds kEndsWithin(500);

[[noreturn]] void fail(const std::string& why) {
  // The exception type of c10d's stores.
  throw c10::DistStoreError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, why);
}

}  // namespace

/// Shared with its thread, which outlives the BoundedStore if a call never returns.
struct BoundedStore::Connection {
  using Task = std::function<void()>;

  explicit Connection(StorePtr inner) : store(std::move(inner)) {}

  StorePtr store;
  const pid_t owner = getpid();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  bool ended = false;
  bool idle_for_good = false;  // its thread no longer needs the store

  bool is_ours() const { return getpid() == owner; }

  StorePtr opened() {
    std::lock_guard lock(mutex);
    require_open();
    return store;
  }

  void post(Task task) {
    {
      std::lock_guard lock(mutex);
      require_open();
      tasks.push_back(std::move(task));
    }
    changed.notify_one();
  }

  /// Closes the connection before it returns, unless a call is still pending; this frees a server's
  /// port, for example.
  void end() {
    StorePtr closing;
    std::unique_lock lock(mutex);
    ended = true;
    changed.notify_all();
    if (changed.wait_for(lock, kEndsWithin, [this] { return idle_for_good; })) closing.swap(store);
    lock.unlock();
  }

  void require_open() const {
    if (ended) fail("this connection to the store was closed when its world ended");
  }

  /// Also runs what was posted before the end: somebody waits for it.
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ended || !tasks.empty(); });
      if (tasks.empty()) {
        idle_for_good = true;
        changed.notify_all();
        return;
      }
      const Task task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  static std::shared_ptr<Connection> start(StorePtr inner) {
    // Dropping the last external reference ends the thread; the thread's own reference keeps what
    // it works on.
    auto connection = std::make_shared<Connection>(std::move(inner));
    std::thread([connection] { connection->run(); }).detach();
    Connection* raw = connection.get();
    return {raw, [connection](Connection*) mutable {
              if (connection->is_ours()) return connection->end();
              // A forked child has no such thread, and a server's destructor would wait for one.
              new auto(std::move(connection));
            }};
  }
};

BoundedStore::BoundedStore(StorePtr store, milliseconds timeout)
    : BoundedStore(Connection::start(std::move(store)), timeout, deadline_after(kNever)) {}

BoundedStore::BoundedStore(std::shared_ptr<Connection> connection, milliseconds timeout,
                           Clock::time_point deadline)
    : Store(timeout), connection_(std::move(connection)), deadline_(deadline) {}

BoundedStore::~BoundedStore() = default;

c10::intrusive_ptr<BoundedStore> BoundedStore::until(Clock::time_point deadline) const {
  return c10::intrusive_ptr<BoundedStore>::make(connection_, timeout_,
                                                std::min(deadline, deadline_));
}

BoundedStore::Clock::time_point BoundedStore::limit(milliseconds timeout) const {
  return std::min(deadline_, deadline_after(timeout == kNoTimeout ? timeout_ : timeout));
}

template <typename Call>
auto BoundedStore::run(std::string what, Call call) const {
  using Answer = std::invoke_result_t<Call, Store&>;
  if (!connection_->is_ours()) {
    fail("this process was forked from a rank; the store's connection is that rank's");
  }
  const MayBlock others_may_run;
  const auto task = std::make_shared<std::packaged_task<Answer()>>(
      [store = connection_->opened(), call = std::move(call)] { return call(*store); });
  auto answer = task->get_future();
  const auto begin = Clock::now();
  connection_->post([task] { (*task)(); });
  if (answer.wait_until(limit(timeout_)) != std::future_status::ready) {
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    fail(join_text("the store did not answer within ", waited.count(), " ms to: ", what));
  }
  return answer.get();
}

void BoundedStore::close() {
  if (connection_->is_ours()) connection_->end();
}

BoundedStore::StorePtr BoundedStore::unbounded_clone() {
  return run("a second connection", [](Store& store) { return store.clone(); });
}

BoundedStore::StorePtr BoundedStore::clone() {
  return c10::make_intrusive<BoundedStore>(unbounded_clone(), timeout_);
}

void BoundedStore::set(const std::string& key, const Bytes& value) {
  run("set " + key, [=](Store& store) { store.set(key, value); });
}

Bytes BoundedStore::compareSet(const std::string& key, const Bytes& expected,
                               const Bytes& desired) {
  return run("compare_set " + key,
             [=](Store& store) { return store.compareSet(key, expected, desired); });
}

Bytes BoundedStore::get(const std::string& key) {
  wait({key});
  return run("get " + key, [=](Store& store) { return store.get(key); });
}

int64_t BoundedStore::add(const std::string& key, int64_t value) {
  return run("add " + key, [=](Store& store) { return store.add(key, value); });
}

bool BoundedStore::deleteKey(const std::string& key) {
  return run("delete " + key, [=](Store& store) { return store.deleteKey(key); });
}

bool BoundedStore::check(const std::vector<std::string>& keys) {
  return run("check " + (keys.empty() ? "" : keys.front()),
             [=](Store& store) { return store.check(keys); });
}

int64_t BoundedStore::getNumKeys() {
  return run("num_keys", [](Store& store) { return store.getNumKeys(); });
}

void BoundedStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void BoundedStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  const auto left =
      std::chrono::ceil<milliseconds>(limit(std::min(timeout, kNever)) - Clock::now());
  if (poll_until(left, [&] { return check(keys); })) return;
  fail(join_text("wait timeout after ", left.count(), " ms for key ", keys.front(),
                 keys.size() > 1 ? " and others" : ""));
}

void BoundedStore::append(const std::string& key, const Bytes& value) {
  run("append " + key, [=](Store& store) { store.append(key, value); });
}

std::vector<Bytes> BoundedStore::multiGet(const std::vector<std::string>& keys) {
  wait(keys);
  return run("multi_get", [=](Store& store) { return store.multiGet(keys); });
}

void BoundedStore::multiSet(const std::vector<std::string>& keys,
                            const std::vector<Bytes>& values) {
  run("multi_set", [=](Store& store) { store.multiSet(keys, values); });
}

bool BoundedStore::hasExtendedApi() const { return connection_->opened()->hasExtendedApi(); }

BoundedStore::StorePtr open_within(milliseconds timeout,
                                   std::function<BoundedStore::StorePtr()> connect) {
  const MayBlock others_may_run;
  std::packaged_task<BoundedStore::StorePtr()> task(std::move(connect));
  auto opened = task.get_future();
  std::thread(std::move(task)).detach();
  if (opened.wait_until(deadline_after(timeout)) != std::future_status::ready) return {};
  return opened.get();
}

}  // namespace tessera::comm
