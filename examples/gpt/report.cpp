#include "report.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

#include "loss_plot.h"

namespace gpt {
namespace {

constexpr const char* kStyle = R"(
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
         color: #222; background: #fff }
  table { border-collapse: collapse; margin: 1rem 0 }
  td, th { padding: .25rem 1rem .25rem 0; text-align: right; border-bottom: 1px solid #ddd }
  td:first-child, th:first-child { text-align: left }
  pre { background: #f4f4f4; padding: 1rem; white-space: pre-wrap }
  svg { width: 100%; height: auto }
)";

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text.precision(digits);
  text << std::fixed << value;
  return text.str();
}

std::string mebibytes(int64_t bytes) { return fixed(static_cast<double>(bytes) / (1 << 20), 2); }

void write_row(std::ostream& out, const char* cell, const std::vector<std::string>& texts) {
  out << "<tr>";
  for (const auto& text : texts) out << "<" << cell << ">" << escaped(text) << "</" << cell << ">";
  out << "</tr>\n";
}

void write_table(std::ostream& out, const std::vector<std::vector<std::string>>& rows) {
  out << "<table>\n";
  for (size_t i = 0; i < rows.size(); ++i) write_row(out, i == 0 ? "th" : "td", rows[i]);
  out << "</table>\n";
}

/// A column a run: speed, loss, and what each owner holds.
void write_runs(std::ostream& out, const std::vector<RunRecord>& runs) {
  std::vector<std::vector<std::string>> rows(5);
  rows[0] = {"mesh"};
  rows[1] = {"last loss"};
  rows[2] = {"tokens a second"};
  rows[3] = {"time with a message under way, %"};
  rows[4] = {"time that rank 0 stood still for messages, %"};
  std::set<std::string> owners;
  for (const auto& run : runs) {
    rows[0].push_back(run.mesh);
    rows[1].push_back(run.losses.empty() ? "" : fixed(run.losses.back(), 6));
    rows[2].push_back(fixed(static_cast<double>(run.tokens) / run.seconds, 0));
    rows[3].push_back(fixed(100 * run.communicating / run.seconds, 1));
    rows[4].push_back(fixed(100 * run.exposed() / run.seconds, 1));
    for (const auto& [owner, bytes] : run.memory) owners.insert(owner);
  }
  for (const auto& owner : owners) {
    rows.push_back({"MiB of rank 0: " + owner});
    for (const auto& run : runs) {
      const auto found = run.memory.find(owner);
      rows.back().push_back(found == run.memory.end() ? "" : mebibytes(found->second));
    }
  }
  write_table(out, rows);
}

void write_traffic(std::ostream& out, const RunRecord& run) {
  const auto steps = static_cast<double>(std::max<size_t>(1, run.losses.size()));
  std::vector<std::vector<std::string>> rows = {
      {"axis and collective", "calls a step", "MiB a step", "ms a step", "exposed ms a step"}};
  for (const auto& [name, one] : run.traffic) {
    rows.push_back({name, fixed(static_cast<double>(one.calls) / steps, 1),
                    fixed(static_cast<double>(one.bytes) / steps / (1 << 20), 3),
                    fixed(1e3 * one.seconds / steps, 2), fixed(1e3 * one.exposed / steps, 2)});
  }
  write_table(out, rows);
}

}  // namespace

void write_report(const std::string& file, const std::vector<RunRecord>& runs,
                  const std::string& sample) {
  std::ofstream out(file);
  out << "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n<title>GPT on "
      << escaped(runs.front().mesh) << "</title>\n<style>" << kStyle << "</style>\n<h1>GPT on "
      << escaped(runs.front().mesh) << "</h1>\n<h2>Loss</h2>\n"
      << loss_plot(runs);
  for (size_t i = 1; i < runs.size(); ++i) {
    out << "<p>The losses of " << escaped(runs.front().mesh) << " and of " << escaped(runs[i].mesh)
        << " differ by at most " << largest_difference(runs.front(), runs[i]) << ".</p>\n";
  }
  out << "<h2>Speed and memory</h2>\n";
  write_runs(out, runs);
  out << "<h2>Communication of rank 0 on " << escaped(runs.front().mesh)
      << "</h2>\n<p>Times are from call to result: they include waiting for ranks that come "
         "later, and what runs beside computation or other messages. Exposed is the part in which "
         "the rank stood still.</p>\n";
  write_traffic(out, runs.front());
  out << "<h2>What it writes</h2>\n<pre>" << escaped(sample) << "</pre>\n</html>\n";
  if (!out.flush()) throw std::runtime_error(file + " cannot be written");
}

}  // namespace gpt
