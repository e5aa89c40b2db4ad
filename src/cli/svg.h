// SPDX-License-Identifier: Apache-2.0
//
// The pictures of --plot: rectangles, lines and texts written as SVG, and two kinds of charts made of them.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace deepinfer::cli {

// kInvalidArgument unless `path` is empty or ends in .svg.
Status CheckPlotName(const std::string& path);

class SvgPicture {
 public:
  SvgPicture(double width, double height);

  void Rect(double x, double y, double width, double height, std::string_view color);
  void Line(double x1, double y1, double x2, double y2, std::string_view color, double width = 1);
  enum class Anchor { kStart, kMiddle, kEnd };
  void Text(double x, double y, std::string_view text, Anchor anchor = Anchor::kStart);

  std::string Finish() const;
  // A palette of colours that can be told apart; repeats.
  static std::string_view Color(size_t i);

 private:
  std::string body_;
  double width_, height_;
};

// Named bars of one unit, one below the other.
std::string BarChart(const std::string& title, const std::vector<std::pair<std::string, double>>& bars, std::string_view unit);

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // by x
};
// Lines over a logarithmic x axis; y starts at 0.
std::string LineChart(const std::string& title, std::string_view x_name, std::string_view y_name, const std::vector<ChartSeries>& series);

}  // namespace deepinfer::cli
