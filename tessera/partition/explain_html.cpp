#include <algorithm>
#include <cstdio>

#include "tessera/base/text.h"
#include "tessera/partition/explain_program.h"

namespace tessera::partition {
namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em;
       color: #1c1e21; background: #fff }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 2em }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .15em .6em; border-bottom: 1px solid #e4e6eb;
         vertical-align: top }
th { position: sticky; top: 0; background: #fff }
td.n { text-align: right; white-space: nowrap } code { font-size: .93em }
tr.comm td { background: #fff1dd } tr.local td { background: #eef6ee }
tr.whole td { color: #8a8d91 } .bar { display: inline-block; height: .7em; background: #e0872b }
input { font: inherit; padding: .3em .6em; width: 22em }
@media (prefers-color-scheme: dark) {
 body, th { background: #18191a; color: #e4e6eb } th, td { border-color: #3a3b3c }
 tr.comm td { background: #4a3316 } tr.local td { background: #1d3324 } }
</style>
)";

/// Rows that do not hold the text are hidden.
constexpr const char* kScript = R"(<script>
document.getElementById("find").addEventListener("input", event => {
  const text = event.target.value.toLowerCase();
  for (const row of document.querySelectorAll("#nodes tbody tr"))
    row.hidden = !row.textContent.toLowerCase().includes(text);
});
</script>
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string micros(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", seconds * 1e6);
  return text.data();
}

void add_step(std::string& out, const ExplainedStep& step, double longest) {
  const double width = longest > 0 ? 12 * step.seconds / longest : 0;
  std::array<char, 16> em{};
  std::snprintf(em.data(), em.size(), "%.2f", width);
  out += join_text("<tr class=\"", step.communicates ? "comm" : "local", "\"><td><code>",
                   escaped(step.value), "</code></td><td>", step.move, " over ", escaped(step.axes),
                   "</td><td><code>", escaped(step.from), " &rarr; ", escaped(step.to),
                   "</code></td><td>");
  if (step.communicates) {
    out += join_text("<span class=\"bar\" style=\"width:", em.data(), "em\"></span> ",
                     bytes_text(step.bytes), " sent");
  }
  out += join_text("</td><td class=\"n\">", micros(step.seconds), "</td></tr>\n");
}

void add_node(std::string& out, const ExplainedNode& node) {
  out += join_text("<tr", node.why_whole.empty() ? "" : " class=\"whole\"", "><td><code>",
                   escaped(node.name), "</code></td><td><code>", escaped(node.op), "</code> ",
                   escaped(node.module), "</td><td><code>", escaped(node.row), "</code> ",
                   escaped(node.why_whole), "</td><td><code>", escaped(node.result),
                   "</code></td><td class=\"n\">", micros(node.compute_seconds), "</td></tr>\n");
}

}  // namespace

std::string ProgramExplanation::to_html() const {
  double longest = 0;
  for (const auto& node : nodes) {
    for (const auto& step : node.before) longest = std::max(longest, step.seconds);
  }
  std::string out = kHead;
  out += join_text("<title>", escaped(source), " on ", escaped(mesh), "</title></head><body>\n<h1>",
                   escaped(source), " on ", escaped(mesh),
                   "</h1>\n<p>Collectives: ", collectives_text(), ". A rank sends ",
                   bytes_text(totals.comm_bytes), " and holds ", bytes_text(totals.weight_bytes),
                   " of weights. Compute ", micros(totals.compute_seconds), " us, communication ",
                   micros(totals.comm_seconds), " us by the machine's model.</p>\n");
  for (const auto& line : must_divide) out += join_text("<p>", escaped(line), "</p>\n");
  out +=
      "<h2>Nodes</h2>\n<p><input id=\"find\" placeholder=\"show rows with this text\"> orange: "
      "messages, green: local moves, grey: runs on whole tensors</p>\n<table id=\"nodes\"><thead>"
      "<tr><th>node</th><th>op, module</th><th>runs as</th><th>result</th><th>us</th></tr></thead>"
      "<tbody>\n";
  for (const auto& node : nodes) {
    for (const auto& step : node.before) add_step(out, step, longest);
    if (!node.name.empty()) add_node(out, node);
  }
  out +=
      "</tbody></table>\n<h2>Weights</h2>\n<table><thead><tr><th>name</th><th>type</th>"
      "<th>placements</th><th>a rank holds</th></tr></thead><tbody>\n";
  for (const auto& w : weights) {
    out += join_text("<tr><td><code>", escaped(w.name), "</code></td><td><code>", escaped(w.type),
                     "</code></td><td><code>", escaped(w.placements),
                     "</code></td><td class=\"n\">", bytes_text(w.local_bytes), "</td></tr>\n");
  }
  return out + "</tbody></table>\n" + kScript + "</body></html>\n";
}

}  // namespace tessera::partition
