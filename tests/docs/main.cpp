// docs_blocks <page>: runs the C++ blocks of a page of the documentation and compares what they
// print with the page.
#include <algorithm>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/docs/blocks.h"

namespace tessera_docs {

std::vector<Block>& blocks() {
  static std::vector<Block> all;
  return all;
}

Registered::Registered(const char* page, int line, void (*run)(), const char* expected) {
  blocks().push_back({page, line, run, expected});
}

namespace {

/// The lines of a text without empty ones and "...", each with single spaces.
std::vector<std::string> words_by_line(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string joined;
    for (std::string word; words >> word;) joined += (joined.empty() ? "" : " ") + word;
    if (!joined.empty() && joined != "...") out.push_back(joined);
  }
  return out;
}

/// The first expected line that was not printed after the ones before it; "" if all were.
std::string first_missing(const std::string& expected, const std::string& printed) {
  const std::vector<std::string> have = words_by_line(printed);
  auto at = have.begin();
  for (const std::string& line : words_by_line(expected)) {
    at = std::find(at, have.end(), line);
    if (at == have.end()) return line;
    ++at;
  }
  return "";
}

bool passes(const Block& block) {
  std::ostringstream printed;
  std::streambuf* const terminal = std::cout.rdbuf(printed.rdbuf());
  std::string problem;
  try {
    block.run();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  std::cout.rdbuf(terminal);
  if (problem.empty()) {
    const std::string missing = first_missing(block.expected, printed.str());
    if (!missing.empty()) problem = "the page says that it prints: " + missing;
  }
  std::cout << block.page << ":" << block.line << (problem.empty() ? " ok" : " FAILED") << "\n";
  std::cout << printed.str();
  if (!problem.empty()) std::cout << problem << "\n";
  return problem.empty();
}

}  // namespace
}  // namespace tessera_docs

int main(int argc, char** argv) {
  const std::string page = argc > 1 ? argv[1] : "";
  int ran = 0;
  int failed = 0;
  for (const tessera_docs::Block& block : tessera_docs::blocks()) {
    if (!page.empty() && block.page != page) continue;
    ++ran;
    failed += tessera_docs::passes(block) ? 0 : 1;
  }
  std::cout << ran << " blocks, " << failed << " failed\n";
  return failed == 0 ? 0 : 1;  // a page may have blocks that are compiled alone
}
