#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>

#include "bind/bind.h"
#include "tessera/collective/deadline.h"
#include "tessera/comm/threads.h"

namespace tessera::python {
namespace {

/// Threads whose thread_local variables are not destroyed yet. Thread.join of Python returns before
/// that (until 3.13 its threads are detached), and those of libtorch may own Python objects: the
/// queue of a failed backward owns the functions that it did not reach. An interpreter that
/// finalizes meanwhile ends the thread inside a destructor, which terminates the process.
class LivingThreads {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    threads_.insert(pthread_self());
  }
  void remove() {
    const std::lock_guard lock(mutex_);
    threads_.erase(pthread_self());
    changed_.notify_all();
  }
  /// The caller of a wait must not hold Python's lock: destructors take it.
  void wait_for_none() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return threads_.empty(); });
  }
  /// Blocks until only threads of `running` are left, or for `limit`. A forked child has none.
  void wait_for_others(const std::set<pthread_t>& running, std::chrono::milliseconds limit) {
    if (getpid() != process_) return;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [&] {
      return std::includes(running.begin(), running.end(), threads_.begin(), threads_.end());
    });
  }

 private:
  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<pthread_t> threads_;  // as Python's thread identifiers
};

/// Counts the calling thread until its end. The destructors of pthread keys run after those of all
/// thread_local variables.
void count_this_thread(const std::shared_ptr<LivingThreads>& among) {
  using Counted = std::shared_ptr<LivingThreads>;
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    const int failed = pthread_key_create(&made, [](void* value) {
      const std::unique_ptr<Counted> counted(static_cast<Counted*>(value));
      (*counted)->remove();
    });
    require(failed == 0, "pthread_key_create: error ", failed);
    return made;
  }();
  if (pthread_getspecific(key) != nullptr) return;  // this thread runs another rank
  auto counted = std::make_unique<Counted>(among);
  require(pthread_setspecific(key, counted.get()) == 0, "no memory to count a thread");
  (*counted.release())->add();
}

/// The threads that entered a rank until their end.
const std::shared_ptr<LivingThreads>& entered_threads() {
  static const auto* threads = new auto(std::make_shared<LivingThreads>());
  return *threads;
}

/// Thread ranks in threads that Python made, so that each has its own Python thread state.
class PythonRanks {
 public:
  PythonRanks(int n, double timeout_s, bool detect_deadlock, bool inherit_state)
      : ranks_(comm::ThreadRanks::create(n, {.timeout = comm::timeout_of(timeout_s),
                                             .detect_deadlock = detect_deadlock,
                                             .inherit_state = inherit_state})) {}

  /// Runs fn(rank) as that rank on the calling thread. An exception wakes the other ranks before it
  /// goes on to the caller.
  py::object run(int rank, const py::function& fn) {
    count_this_thread(threads_);
    const comm::EnterRank here(*ranks_, rank);
    try {
      return fn(rank);
    } catch (py::error_already_set& error) {
      fail(rank, error.what());
      throw;
    }
  }

  void fail(int rank, const std::string& message) {
    int none = -1;
    first_failed_.compare_exchange_strong(none, rank);
    ranks_->fail(rank, std::make_exception_ptr(Error(message)));
  }

  /// Blocks until the threads that called run() have ended, with their thread_local variables.
  void wait_for_threads() { threads_->wait_for_none(); }

  int first_failed() const { return first_failed_; }
  comm::ThreadRanks& ranks() const { return *ranks_; }

 private:
  std::shared_ptr<comm::ThreadRanks> ranks_;
  std::shared_ptr<LivingThreads> threads_ = std::make_shared<LivingThreads>();
  std::atomic<int> first_failed_{-1};
};

/// The calling thread as one of the ranks, from here until this goes.
struct EnteredRank {
  EnteredRank(std::shared_ptr<PythonRanks> of, int rank)
      : ranks(std::move(of)), here(ranks->ranks(), rank) {
    count_this_thread(entered_threads());
  }
  std::shared_ptr<PythonRanks> ranks;
  comm::EnterRank here;
};

}  // namespace

void bind_ranks(py::module_& m) {
  py::class_<PythonRanks, std::shared_ptr<PythonRanks>>(m, "ThreadRanks")
      .def(py::init<int, double, bool, bool>(), py::arg("n"), py::arg("timeout"),
           py::arg("detect_deadlock"), py::arg("inherit_state") = true)
      .def("run", &PythonRanks::run)
      .def("fail", &PythonRanks::fail)
      .def("wait_for_threads", &PythonRanks::wait_for_threads,
           py::call_guard<py::gil_scoped_release>())
      .def("first_failed", &PythonRanks::first_failed);
  py::class_<EnteredRank>(m, "EnteredRank")
      .def(py::init<std::shared_ptr<PythonRanks>, int>(), py::arg("ranks"), py::arg("rank"));
  m.def(
      "wait_for_ended_threads",
      [](const std::set<pthread_t>& running) {
        entered_threads()->wait_for_others(running, std::chrono::seconds(1));
      },
      py::arg("running"), NoGil(),
      "Blocks until the threads that entered a rank and are not running Python have ended.");
}

}  // namespace tessera::python
