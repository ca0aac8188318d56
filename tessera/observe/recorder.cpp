#include "tessera/observe/recorder.h"

#include <algorithm>

#include "tessera/base/text.h"
#include "tessera/collective/call_info.h"
#include "tessera/observe/event_log.h"
#include "tessera/observe/observer_state.h"

namespace tessera::comm {
namespace {

std::string shapes_text(const std::vector<std::vector<int64_t>>& shapes) {
  ShapeList list;
  for (const auto& shape : shapes) list.add(shape);
  return list.to_text();
}

std::string duration_text(std::chrono::nanoseconds duration) {
  if (duration.count() < 0) return "in flight";
  return join_text(static_cast<double>(duration.count()) / 1000.0, " us");
}

}  // namespace

Observers::Observers(int rank) : rank_(rank), state_(std::make_shared<ObserverState>()) {}
Observers::~Observers() = default;

std::string CommEvent::to_text() const {
  std::string out(op_name(op));
  if (!axis.empty()) out += join_text(" on ", axis);
  if (!shapes_in.empty() || !shapes_out.empty()) {
    out += join_text(" ", shapes_text(shapes_in), " -> ", shapes_text(shapes_out), " ",
                     dtype_text(dtype), ", ", bytes_text(bytes()));
  }
  out += join_text(implicit ? ", implicit in " : ", from ", site);
  if (group) out += join_text(", ", group->to_text());
  if (failed) out += ", failed";
  return out;
}

Recorder::Recorder(const Observers& observers)
    : rank_(observers.rank()), state_(observers.state()), log_(std::make_shared<EventLog>()) {
  std::lock_guard lock(state_->mutex);
  state_->logs.push_back(log_);
  state_->active.fetch_add(1);
}

Recorder::~Recorder() { stop(); }

void Recorder::stop() {
  if (!state_) return;
  {
    std::lock_guard lock(state_->mutex);
    std::erase(state_->logs, log_);
    state_->active.fetch_sub(1);
  }
  state_.reset();
}

void Recorder::clear() { log_->clear(); }

std::vector<CommEvent> Recorder::events() const { return log_->snapshot(); }

int Recorder::count_if(const std::function<bool(const CommEvent&)>& wanted) const {
  const auto all = events();
  return static_cast<int>(std::count_if(all.begin(), all.end(), wanted));
}

int Recorder::count() const {
  return count_if([](const CommEvent&) { return true; });
}

int Recorder::count(CommOp op) const {
  return count_if([&](const CommEvent& e) { return e.op == op; });
}

int Recorder::count_on(std::string_view axis) const {
  return count_if([&](const CommEvent& e) { return e.axis == axis; });
}

int Recorder::count(CommOp op, std::string_view axis) const {
  return count_if([&](const CommEvent& e) { return e.op == op && e.axis == axis; });
}

int Recorder::count_implicit() const {
  return count_if([](const CommEvent& e) { return e.implicit; });
}

int64_t Recorder::bytes() const {
  int64_t total = 0;
  for (const auto& event : events()) total += event.bytes();
  return total;
}

std::chrono::nanoseconds Recorder::exposed() const {
  std::chrono::nanoseconds total{0};
  for (const auto& event : events()) total += event.exposed;
  return total;
}

std::map<CommOp, int> Recorder::by_op() const {
  std::map<CommOp, int> counts;
  for (const auto& event : events()) ++counts[event.op];
  return counts;
}

std::map<std::string, int> Recorder::by_axis() const {
  std::map<std::string, int> counts;
  for (const auto& event : events()) ++counts[event.axis];
  return counts;
}

std::string Recorder::to_text() const {
  const auto all = events();
  std::vector<std::vector<std::string>> rows = {
      {"op", "axis", "ranks", "in", "out", "dtype", "bytes", "asked by", "time", "exposed"}};
  for (const auto& e : all) {
    rows.push_back({std::string(op_name(e.op)), e.axis.empty() ? "-" : e.axis,
                    e.group ? list_text(std::span<const int>(e.group->ranks)) : "-",
                    shapes_text(e.shapes_in), shapes_text(e.shapes_out), dtype_text(e.dtype),
                    bytes_text(e.bytes()), e.implicit ? e.site + " (implicit)" : e.site,
                    e.failed ? "failed" : duration_text(e.duration), duration_text(e.exposed)});
  }
  return join_text(table_text(rows), "rank ", rank_, ": ", all.size(), " calls, ",
                   bytes_text(bytes()), ", ", count_implicit(), " implicit\n");
}

}  // namespace tessera::comm
