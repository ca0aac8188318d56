#include "tessera/base/progress_bar.h"

#include <gtest/gtest.h>

#include <sstream>

namespace tessera {
namespace progress_bar_test {

using std::chrono::milliseconds;

TEST(ProgressBar, ShowsBytesAndCountsAndErasesItself) {
  std::ostringstream out;
  {
    ProgressBar bar("writing", {.to = &out, .delay = milliseconds(0), .pause = milliseconds(0)});
    bar.show(512 << 10, 1 << 20);
    bar.show_count(3, 4, "runs");
  }
  EXPECT_EQ(out.str(),
            "\rwriting [###############...............] 50 %  512 KiB of 1 MiB\x1b[K"
            "\rwriting [######################........] 75 %  3 of 4 runs\x1b[K"
            "\r\x1b[K");
}

TEST(ProgressBar, OfShortWorkAndOfNothingIsNotDrawn) {
  std::ostringstream out;
  {
    ProgressBar soon("writing", {.to = &out});
    soon.show(1, 2);
    ProgressBar nothing("writing", {.to = &out, .delay = milliseconds(0)});
    nothing.show(0, 0);
  }
  EXPECT_EQ(out.str(), "");
}

TEST(ProgressBar, IsRedrawnAfterAPause) {
  std::ostringstream out;
  {
    ProgressBar bar("x", {.to = &out, .delay = milliseconds(0), .pause = milliseconds(100'000)});
    bar.show_count(1, 9, "steps");
    bar.show_count(2, 9, "steps");
  }
  EXPECT_EQ(out.str().find("2 of 9"), std::string::npos);
}

}  // namespace progress_bar_test
}  // namespace tessera
