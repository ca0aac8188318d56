#include <atomic>

#include "bind/bind.h"
#include "tessera/collective/deadline.h"
#include "tessera/comm/threads.h"

namespace tessera::python {
namespace {

/// Thread ranks in threads that Python made, so that each has its own Python thread state.
class PythonRanks {
 public:
  PythonRanks(int n, double timeout_s, bool detect_deadlock)
      : ranks_(comm::ThreadRanks::create(
            n, {.timeout = comm::timeout_of(timeout_s), .detect_deadlock = detect_deadlock})) {}

  /// Runs fn(rank) as that rank on the calling thread. An exception wakes the other ranks before it
  /// goes on to the caller.
  py::object run(int rank, const py::function& fn) {
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

  int first_failed() const { return first_failed_; }
  comm::ThreadRanks& ranks() const { return *ranks_; }

 private:
  std::shared_ptr<comm::ThreadRanks> ranks_;
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
      .def("first_failed", &PythonRanks::first_failed);
  py::class_<EnteredRank>(m, "EnteredRank")
      .def(py::init<std::shared_ptr<PythonRanks>, int>(), py::arg("ranks"), py::arg("rank"));
}

}  // namespace tessera::python
