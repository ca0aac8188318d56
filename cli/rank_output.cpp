#include "cli/rank_output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace tessera::cli {
namespace {

constexpr size_t kLastLines = 10;
constexpr std::array kColours = {"36", "32", "33", "35", "34", "96", "92", "93", "95", "94"};

std::string prefix_of(int rank, int widest_rank, bool colour) {
  const std::string number = std::to_string(rank);
  const size_t width = std::to_string(widest_rank).size();
  const std::string text = "[" + std::string(width - number.size(), ' ') + number + "]";
  if (!colour) return text + " ";
  const char* code = kColours[static_cast<size_t>(rank) % kColours.size()];
  return std::string("\033[") + code + "m" + text + "\033[0m ";
}

}  // namespace

RankOutput::RankOutput(int rank, const OutputStyle& style)
    : prefixes_{prefix_of(rank, style.widest_rank, style.colour_out),
                prefix_of(rank, style.widest_rank, style.colour_err)} {
  if (style.log_dir.empty()) return;
  const auto file = std::filesystem::path(style.log_dir) / ("rank" + std::to_string(rank) + ".log");
  log_.open(file);
  if (!log_) throw std::runtime_error("launch: " + file.string() + " cannot be written");
}

void RankOutput::take(Stream stream, std::string_view bytes) {
  std::string& unfinished = unfinished_[static_cast<size_t>(stream)];
  std::string text;
  for (size_t end = 0; (end = bytes.find('\n')) != std::string_view::npos;) {
    unfinished.append(bytes.substr(0, end));
    pass_on(stream, unfinished, text);
    unfinished.clear();
    bytes.remove_prefix(end + 1);
  }
  unfinished.append(bytes);
  if (unfinished.size() > kLongestLine) {
    pass_on(stream, unfinished, text);
    unfinished.clear();
  }
  if (log_.is_open()) log_.flush();
  write_all(stream, text);
}

void RankOutput::finish(Stream stream) {
  if (!unfinished_[static_cast<size_t>(stream)].empty()) take(stream, "\n");
}

void RankOutput::pass_on(Stream stream, std::string_view line, std::string& text) {
  text.append(prefix(stream)).append(line).append("\n");
  if (log_.is_open()) log_ << line << "\n";
  last_lines_.emplace_back(line);
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
}

void write_all(Stream stream, std::string_view text) {
  const int file = stream == Stream::out ? STDOUT_FILENO : STDERR_FILENO;
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // the terminal was made non-blocking
      pollfd ready{file, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "launch: cannot write the output");
    }
  }
}

}  // namespace tessera::cli
