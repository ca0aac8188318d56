#include "loss_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

namespace gpt {
namespace {

constexpr double kWidth = 800, kHeight = 360, kLeft = 50, kBottom = 40, kTop = 10, kRight = 10;
constexpr std::array kColours = {"#b3261e", "#8ab4f8", "#81c995", "#fdd663"};

class Plot {
 public:
  Plot(double steps, double largest) : steps_(steps), largest_(largest) {}

  double x(double step) const { return kLeft + (kWidth - kLeft - kRight) * step / steps_; }
  double y(double loss) const {
    return kHeight - kBottom - (kHeight - kBottom - kTop) * loss / largest_;
  }

  void grid(std::ostream& out) const {
    for (double loss = 0; loss <= largest_; loss += 1) {
      out << "<line x1=\"" << kLeft << "\" x2=\"" << kWidth - kRight << "\" y1=\"" << y(loss)
          << "\" y2=\"" << y(loss) << "\" stroke=\"#ddd\"/>\n";
      text(out, kLeft - 8, y(loss) + 5, "end", std::to_string(static_cast<int>(loss)));
    }
    for (int i = 0; i <= 4; ++i) {
      const double step = std::round(steps_ * i / 4);
      text(out, x(step), kHeight - kBottom + 20, "middle", std::to_string(static_cast<int>(step)));
    }
    text(out, kWidth - kRight, kHeight - 4, "end", "step");
  }

  void curve(std::ostream& out, const RunRecord& run, const char* colour, double thickness) const {
    out << "<polyline fill=\"none\" stroke=\"" << colour << "\" stroke-width=\"" << thickness
        << "\" points=\"";
    for (size_t i = 0; i < run.losses.size(); ++i) {
      out << x(static_cast<double>(i + 1)) << "," << y(std::min(run.losses[i], largest_)) << " ";
    }
    out << "\"/>\n";
  }

  static void text(std::ostream& out, double x, double y, const char* anchor,
                   const std::string& what) {
    out << "<text x=\"" << x << "\" y=\"" << y << "\" text-anchor=\"" << anchor
        << "\" font-size=\"14\" fill=\"#555\">" << what << "</text>\n";
  }

 private:
  double steps_;
  double largest_;
};

}  // namespace

std::string loss_plot(const std::vector<RunRecord>& runs) {
  double steps = 1, largest = 1;
  for (const auto& run : runs) {
    steps = std::max(steps, static_cast<double>(run.losses.size()));
    for (const double loss : run.losses) {
      if (std::isfinite(loss)) largest = std::max(largest, std::ceil(loss));
    }
  }
  const Plot plot(steps, largest);
  std::ostringstream out;
  out << "<svg viewBox=\"0 0 " << kWidth << " " << kHeight << "\" role=\"img\">\n";
  plot.grid(out);
  for (size_t i = runs.size(); i-- > 0;) {
    const char* colour = kColours[std::min(i, kColours.size() - 1)];
    const double thickness = i == 0 ? 1.5 : 6;
    plot.curve(out, runs[i], colour, thickness);
    const double y = kTop + 20 + 22 * static_cast<double>(i);
    out << "<line x1=\"600\" x2=\"630\" y1=\"" << y - 5 << "\" y2=\"" << y - 5 << "\" stroke=\""
        << colour << "\" stroke-width=\"" << thickness << "\"/>\n";
    Plot::text(out, 640, y, "start", runs[i].mesh);
  }
  out << "</svg>\n";
  return out.str();
}

}  // namespace gpt
