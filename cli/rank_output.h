#pragma once

#include <array>
#include <deque>
#include <fstream>
#include <string>
#include <string_view>

/// Forwards the output of one rank line by line, prefixed with the rank:
///
///   [0] step 10 loss 2.1
///   [3] step 10 loss 2.1
///
/// Lines of several ranks never mix. A line is forwarded at its newline, when it exceeds
/// kLongestLine, or when the rank has ended.
namespace tessera::cli {

enum class Stream { out = 0, err = 1 };

inline constexpr size_t kLongestLine = 1 << 16;

struct OutputStyle {
  int widest_rank = 0;  ///< the largest rank, which determines the width of prefixes
  bool colour_out = false;
  bool colour_err = false;
  std::string log_dir;  ///< "": none; else <log_dir>/rank<N>.log gets the rank's lines
};

class RankOutput {
 public:
  RankOutput(int rank, const OutputStyle& style);

  void take(Stream stream, std::string_view bytes);
  void finish(Stream stream);  ///< forwards a last line without a newline

  const std::deque<std::string>& last_lines() const { return last_lines_; }
  /// "[3] ", coloured if enabled for the stream.
  const std::string& prefix(Stream stream) const { return prefixes_[static_cast<size_t>(stream)]; }

 private:
  void pass_on(Stream stream, std::string_view line, std::string& text);

  std::array<std::string, 2> prefixes_;
  std::array<std::string, 2> unfinished_;
  std::deque<std::string> last_lines_;
  std::ofstream log_;
};

/// Writes everything to stdout or stderr of this process.
void write_all(Stream stream, std::string_view text);

}  // namespace tessera::cli
