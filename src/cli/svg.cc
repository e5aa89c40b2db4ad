// SPDX-License-Identifier: Apache-2.0
#include "cli/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include "core/escape.h"

namespace deepinfer::cli {

namespace {

constexpr std::array<std::string_view, 12> kColors = {"#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948",
                                                      "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac", "#86bcb6", "#d37295"};

std::string XmlEscape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else out += c;
  }
  return out;
}

}  // namespace

Status CheckPlotName(const std::string& path) {
  if (path.empty() || path.ends_with(".svg")) return Status::Ok();
  return InvalidArgument(fmt::format("--plot is {} but must end in .svg; other kinds of pictures can be made from that", Escape(path)));
}

SvgPicture::SvgPicture(double width, double height) : width_(width), height_(height) {}

void SvgPicture::Rect(double x, double y, double width, double height, std::string_view color) {
  fmt::format_to(std::back_inserter(body_), "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n", x, y,
                 width, height, color);
}

void SvgPicture::Line(double x1, double y1, double x2, double y2, std::string_view color, double width) {
  fmt::format_to(std::back_inserter(body_),
                 "<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" stroke=\"{}\" stroke-width=\"{:.1f}\"/>\n", x1, y1, x2, y2,
                 color, width);
}

void SvgPicture::Text(double x, double y, std::string_view text, Anchor anchor) {
  const char* name = anchor == Anchor::kStart ? "start" : anchor == Anchor::kMiddle ? "middle" : "end";
  fmt::format_to(std::back_inserter(body_), "<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\">{}</text>\n", x, y, name, XmlEscape(text));
}

std::string SvgPicture::Finish() const {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
             width_, height_) +
         body_ + "</svg>\n";
}

std::string_view SvgPicture::Color(size_t i) { return kColors[i % kColors.size()]; }

std::string BarChart(const std::string& title, const std::vector<std::pair<std::string, double>>& bars, std::string_view unit) {
  constexpr double kLeft = 190, kBar = 420, kRow = 26;
  SvgPicture picture(760, 50 + kRow * static_cast<double>(bars.size()));
  picture.Text(10, 22, title);
  double largest = 0;
  for (const auto& bar : bars) largest = std::max(largest, bar.second);
  for (size_t i = 0; i < bars.size(); ++i) {
    const double y = 36 + kRow * static_cast<double>(i);
    const double width = largest > 0 ? bars[i].second / largest * kBar : 0;
    picture.Text(kLeft - 8, y + 14, bars[i].first, SvgPicture::Anchor::kEnd);
    picture.Rect(kLeft, y, width, kRow - 8, SvgPicture::Color(i));
    picture.Text(kLeft + width + 6, y + 14, fmt::format("{:.4g} {}", bars[i].second, unit));
  }
  return picture.Finish();
}

std::string LineChart(const std::string& title, std::string_view x_name, std::string_view y_name, const std::vector<ChartSeries>& series) {
  constexpr double kWidth = 760, kLeft = 70, kTop = 40, kPlotWidth = 480, kPlotHeight = 300;
  SvgPicture picture(kWidth, kTop + kPlotHeight + 50);
  picture.Text(10, 22, title);
  std::set<double> xs;
  double largest = 0;
  for (const ChartSeries& line : series) {
    for (const auto& [x, y] : line.points) {
      xs.insert(x);
      largest = std::max(largest, y);
    }
  }
  if (xs.empty()) return picture.Finish();
  const double low = std::log(*xs.begin()), high = std::log(*xs.rbegin());
  const auto at_x = [&](double x) { return high > low ? kLeft + (std::log(x) - low) / (high - low) * kPlotWidth : kLeft + kPlotWidth / 2; };
  const auto at_y = [&](double y) { return kTop + kPlotHeight * (1 - (largest > 0 ? y / largest : 0)); };
  for (int i = 0; i <= 4; ++i) {
    const double y = largest * i / 4;
    picture.Line(kLeft, at_y(y), kLeft + kPlotWidth, at_y(y), "#dddddd");
    picture.Text(kLeft - 6, at_y(y) + 4, fmt::format("{:.3g}", y), SvgPicture::Anchor::kEnd);
  }
  for (const double x : xs) picture.Text(at_x(x), kTop + kPlotHeight + 18, fmt::format("{:.6g}", x), SvgPicture::Anchor::kMiddle);
  picture.Text(kLeft + kPlotWidth / 2, kTop + kPlotHeight + 38, x_name, SvgPicture::Anchor::kMiddle);
  picture.Text(10, kTop - 4, y_name);
  for (size_t s = 0; s < series.size(); ++s) {
    const std::string_view color = SvgPicture::Color(s);
    const auto& points = series[s].points;
    for (size_t i = 0; i < points.size(); ++i) {
      const double x = at_x(points[i].first), y = at_y(points[i].second);
      if (i > 0) picture.Line(at_x(points[i - 1].first), at_y(points[i - 1].second), x, y, color, 2);
      picture.Rect(x - 3, y - 3, 6, 6, color);
    }
    const double y = kTop + 18 * static_cast<double>(s);
    picture.Rect(kLeft + kPlotWidth + 20, y, 12, 12, color);
    picture.Text(kLeft + kPlotWidth + 38, y + 11, series[s].name);
  }
  return picture.Finish();
}

}  // namespace deepinfer::cli
