// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "vision/resize.h"

namespace deepinfer::vision {

namespace {

uint8_t RoundToByte(float value) { return static_cast<uint8_t>(std::clamp(static_cast<int>(std::nearbyint(value)), 0, 255)); }

// Whole blocks of source pixels.
Image AverageBlocks(const Image& image, Size size, int across, int down) {
  Image out;
  out.Allocate(size);
  const auto inverse = static_cast<float>(1.0 / (across * down));
  for (int y = 0; y < size.height; ++y) {
    uint8_t* to = out.row(y);
    for (int x = 0; x < size.width; ++x) {
      for (int c = 0; c < 3; ++c) {
        int sum = 0;
        for (int dy = 0; dy < down; ++dy) {
          const uint8_t* from = image.row(y * down + dy) + 3 * x * across + c;
          for (int dx = 0; dx < across; ++dx) sum += from[3 * dx];
        }
        *to++ = across == 2 && down == 2 ? static_cast<uint8_t>((sum + 2) >> 2)
                                         : RoundToByte(static_cast<float>(sum) * inverse);
      }
    }
  }
  return out;
}

struct AreaTap {
  int to;
  int from;
  float weight;
};

// In the order of the targets, and of the sources of each.
std::vector<AreaTap> MakeTaps(int from, int to) {
  const double scale = 1.0 / (static_cast<double>(to) / from);
  constexpr double kSmall = 1e-3;
  std::vector<AreaTap> taps;
  for (int d = 0; d < to; ++d) {
    const double f1 = d * scale;
    const double f2 = f1 + scale;
    const double width = std::min(scale, from - f1);
    int s1 = static_cast<int>(std::ceil(f1));
    const int s2 = std::min(static_cast<int>(std::floor(f2)), from - 1);
    s1 = std::min(s1, s2);
    if (s1 - f1 > kSmall) taps.push_back({d, s1 - 1, static_cast<float>((s1 - f1) / width)});
    for (int s = s1; s < s2; ++s) taps.push_back({d, s, static_cast<float>(1.0 / width)});
    if (f2 - s2 > kSmall) {
      taps.push_back({d, s2, static_cast<float>(std::min(std::min(f2 - s2, 1.0), width) / width)});
    }
  }
  return taps;
}

}  // namespace

Image ResizeArea(const Image& image, Size size) {
  const double scale_x = 1.0 / (static_cast<double>(size.width) / image.size.width);
  const double scale_y = 1.0 / (static_cast<double>(size.height) / image.size.height);
  const int across = static_cast<int>(std::nearbyint(scale_x));
  const int down = static_cast<int>(std::nearbyint(scale_y));
  if (std::abs(scale_x - across) < DBL_EPSILON && std::abs(scale_y - down) < DBL_EPSILON) {
    return AverageBlocks(image, size, across, down);
  }
  const std::vector<AreaTap> x_taps = MakeTaps(image.size.width, size.width);
  const std::vector<AreaTap> y_taps = MakeTaps(image.size.height, size.height);
  Image out;
  out.Allocate(size);
  std::vector<float> row(out.row_bytes());
  std::vector<float> sum(out.row_bytes());
  for (size_t i = 0; i < y_taps.size(); ++i) {
    const AreaTap& y = y_taps[i];
    std::fill(row.begin(), row.end(), 0.0f);
    const uint8_t* from = image.row(y.from);
    for (const AreaTap& x : x_taps) {
      for (int c = 0; c < 3; ++c) row[static_cast<size_t>(3 * x.to + c)] += from[3 * x.from + c] * x.weight;
    }
    const bool is_first = i == 0 || y_taps[i - 1].to != y.to;
    for (size_t k = 0; k < row.size(); ++k) sum[k] = is_first ? row[k] * y.weight : sum[k] + row[k] * y.weight;
    if (i + 1 == y_taps.size() || y_taps[i + 1].to != y.to) {
      uint8_t* to = out.row(y.to);
      for (size_t k = 0; k < sum.size(); ++k) to[k] = RoundToByte(sum[k]);
    }
  }
  return out;
}

}  // namespace deepinfer::vision
