#include <atomic>
#include <condition_variable>
#include <mutex>

#include "bind/bind.h"
#include "tessera/collective/deadline.h"
#include "tessera/comm/threads.h"

namespace tessera::python {
namespace {

/// Counts threads whose thread_local variables are not destroyed yet. Thread.join of Python returns
/// before that (until 3.13 its threads are detached), and those of libtorch may own Python objects:
/// the queue of a failed backward owns the functions that it did not reach. An interpreter that
/// finalizes meanwhile ends the thread inside a destructor, which terminates the process.
class LivingThreads {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void remove() {
    const std::lock_guard lock(mutex_);
    --count_;
    changed_.notify_all();
  }
  /// The caller must not hold Python's lock: destructors take it.
  void wait_for_none() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

/// Counts the calling thread until its end. thread_local variables are destroyed in the reverse
/// order of their initialisation, so those that are initialised after this call are gone by then.
void count_this_thread(std::shared_ptr<LivingThreads> among) {
  struct Counted {
    std::shared_ptr<LivingThreads> among;
    ~Counted() {
      if (among != nullptr) among->remove();
    }
  };
  thread_local Counted counted;
  if (counted.among != nullptr) return;  // this thread runs another rank
  among->add();
  counted.among = std::move(among);
}

/// Thread ranks in threads that Python made, so that each has its own Python thread state.
class PythonRanks {
 public:
  PythonRanks(int n, double timeout_s, bool detect_deadlock)
      : ranks_(comm::ThreadRanks::create(
            n, {.timeout = comm::timeout_of(timeout_s), .detect_deadlock = detect_deadlock})) {}

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
      : ranks(std::move(of)), here(ranks->ranks(), rank) {}
  std::shared_ptr<PythonRanks> ranks;
  comm::EnterRank here;
};

}  // namespace

void bind_ranks(py::module_& m) {
  py::class_<PythonRanks, std::shared_ptr<PythonRanks>>(m, "ThreadRanks")
      .def(py::init<int, double, bool>(), py::arg("n"), py::arg("timeout"),
           py::arg("detect_deadlock"))
      .def("run", &PythonRanks::run)
      .def("fail", &PythonRanks::fail)
      .def("wait_for_threads", &PythonRanks::wait_for_threads,
           py::call_guard<py::gil_scoped_release>())
      .def("first_failed", &PythonRanks::first_failed);
  py::class_<EnteredRank>(m, "EnteredRank")
      .def(py::init<std::shared_ptr<PythonRanks>, int>(), py::arg("ranks"), py::arg("rank"));
}

}  // namespace tessera::python
