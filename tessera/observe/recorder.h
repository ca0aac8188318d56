#pragma once

#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/collective/comm_op.h"
#include "tessera/collective/group_info.h"

/// Records the communication of one rank.
///
///   Recorder recorder(*world);                 // records until it goes out of scope
///   y = redistribute(x, to);
///   recorder.count(CommOp::all_gather)         -> 1
///   recorder.to_text()                         -> a table, one line per event
///   expect_comm(recorder, "1 all_gather on tp, 0 implicit");   // expect.h
///
/// Several may be active at a time, nested or not; each records the calls that start during its
/// lifetime. A recorder belongs to one rank's world: in a thread world every rank creates its own.
namespace tessera::comm {

class EventLog;
struct ObserverState;

/// The observers of one rank's collectives; every RankWorld owns one and converts to it. The state
/// is shared with the taps, so a process group that outlives its world stays valid.
class TESSERA_API Observers {
 public:
  explicit Observers(int rank = 0);
  ~Observers();
  Observers(const Observers&) = delete;
  Observers& operator=(const Observers&) = delete;

  int rank() const { return rank_; }  ///< in the world
  const std::shared_ptr<ObserverState>& state() const { return state_; }

 private:
  int rank_;
  std::shared_ptr<ObserverState> state_;
};

using Clock = std::chrono::steady_clock;

/// One collective as its caller saw it.
struct TESSERA_API CommEvent {
  CommOp op = CommOp::barrier;
  std::shared_ptr<const GroupInfo> group;
  std::string site;          ///< the op that requested it ("aten::mm"); "user" if none did
  std::string axis;          ///< the mesh axis; "" if unknown
  bool implicit = false;     ///< requested by the library, not by the caller
  bool in_backward = false;  ///< called in a backward, or at its end
  bool async = false;        ///< issued with asyncOp: the caller waits later
  bool failed = false;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::vector<int64_t>> shapes_in;
  std::vector<std::vector<int64_t>> shapes_out;
  int64_t bytes_in = 0;
  int64_t bytes_out = 0;
  Clock::time_point start;
  /// From the call until its wait returned (or it was found complete); negative while in flight.
  /// For CUDA tensors a wait only orders streams: this is the host's time, not the device's.
  std::chrono::nanoseconds duration{-1};
  /// The part of it in which the caller was blocked, in the call and in its waits: not overlapped
  /// with computation.
  std::chrono::nanoseconds exposed{0};

  /// The larger of both sides: what `all_gather` produces, what `reduce_scatter` consumes.
  int64_t bytes() const { return bytes_in > bytes_out ? bytes_in : bytes_out; }
  /// "all_gather on tp 2x4 -> 8x4 float32, 128 B, implicit in aten::mm, group g (ranks 0,1)"
  std::string to_text() const;
};

class TESSERA_API Recorder {
 public:
  explicit Recorder(const Observers& observers);  ///< or a RankWorld
  ~Recorder();                                    ///< stops recording
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void stop();   ///< stops recording; keeps the events
  void clear();  ///< drops the events

  int rank() const { return rank_; }
  std::vector<CommEvent> events() const;  ///< a copy, in order of issue

  int count() const;
  int count(CommOp op) const;
  int count_on(std::string_view axis) const;
  int count(CommOp op, std::string_view axis) const;
  int count_implicit() const;
  int64_t bytes() const;                     ///< sum of CommEvent::bytes
  std::chrono::nanoseconds exposed() const;  ///< sum of CommEvent::exposed

  std::map<CommOp, int> by_op() const;
  std::map<std::string, int> by_axis() const;

  /// A table, one line per event, and a line of totals.
  std::string to_text() const;

 private:
  int count_if(const std::function<bool(const CommEvent&)>& wanted) const;

  int rank_ = 0;
  std::shared_ptr<ObserverState> state_;  // null once stopped
  std::shared_ptr<EventLog> log_;
};

}  // namespace tessera::comm
