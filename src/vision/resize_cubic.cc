// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "vision/resize.h"

namespace deepinfer::vision {

namespace {

struct CubicTaps {
  std::array<int, 4> source;  // clamped source indices
  std::array<int, 4> weight;  // of 2048
};

std::vector<CubicTaps> MakeTaps(int from, int to) {
  const double scale = 1.0 / (static_cast<double>(to) / from);
  std::vector<CubicTaps> taps(static_cast<size_t>(to));
  for (int d = 0; d < to; ++d) {
    const auto f = static_cast<float>((d + 0.5) * scale - 0.5);
    const int s = static_cast<int>(std::floor(f));
    const float x = f - static_cast<float>(s);
    const float y = 1.0f - x;
    constexpr float kA = -0.75f;
    std::array<float, 4> c;
    c[0] = ((kA * (x + 1) - 5 * kA) * (x + 1) + 8 * kA) * (x + 1) - 4 * kA;
    c[1] = ((kA + 2) * x - (kA + 3)) * x * x + 1;
    c[2] = ((kA + 2) * y - (kA + 3)) * y * y + 1;
    c[3] = 1.0f - c[0] - c[1] - c[2];
    CubicTaps& tap = taps[static_cast<size_t>(d)];
    for (int i = 0; i < 4; ++i) {
      const auto at = static_cast<size_t>(i);
      tap.source[at] = std::clamp(s - 1 + i, 0, from - 1);
      tap.weight[at] = static_cast<int>(std::nearbyint(c[at] * 2048.0f));
    }
  }
  return taps;
}

void HorizontalPass(const uint8_t* row, const std::vector<CubicTaps>& taps, float* out) {
  for (const CubicTaps& tap : taps) {
    const uint8_t* p0 = row + 3 * tap.source[0];
    const uint8_t* p1 = row + 3 * tap.source[1];
    const uint8_t* p2 = row + 3 * tap.source[2];
    const uint8_t* p3 = row + 3 * tap.source[3];
    for (int c = 0; c < 3; ++c) {
      // At most 255 * 2048 * 2: exact as float.
      *out++ = static_cast<float>(p0[c] * tap.weight[0] + p1[c] * tap.weight[1] + p2[c] * tap.weight[2] +
                                  p3[c] * tap.weight[3]);
    }
  }
}

// Sums from the last row to the first, each product and sum rounded by itself.
void VerticalPass(const std::array<const float*, 4>& h, const std::array<float, 4>& b, size_t count, uint8_t* out) {
  const float* h0 = h[0];
  const float* h1 = h[1];
  const float* h2 = h[2];
  const float* h3 = h[3];
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the integer, rounded half to even, in the low bits
  for (size_t i = 0; i < count; ++i) {
    float t = h3[i] * b[3];
    t = h2[i] * b[2] + t;
    t = h1[i] * b[1] + t;
    t = h0[i] * b[0] + t;
    t = std::min(std::max(t, 0.0f), 255.0f);
    out[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(t + kRound));
  }
}

}  // namespace

Image ResizeCubic(const Image& image, Size size) {
  const std::vector<CubicTaps> across = MakeTaps(image.size.width, size.width);
  const std::vector<CubicTaps> down = MakeTaps(image.size.height, size.height);
  Image out;
  out.Allocate(size);
  // The last four source rows after the horizontal pass; a source row lives in the place of its index modulo 4. The four
  // taps of an output row are neighbours, so they never collide.
  const size_t row_samples = out.row_bytes();
  std::array<std::vector<float>, 4> rows;
  std::array<int, 4> row_of{-1, -1, -1, -1};
  for (auto& row : rows) row.resize(row_samples);
  for (int y = 0; y < size.height; ++y) {
    const CubicTaps& tap = down[static_cast<size_t>(y)];
    std::array<const float*, 4> h;
    std::array<float, 4> b;
    for (size_t i = 0; i < 4; ++i) {
      const auto place = static_cast<size_t>(tap.source[i] % 4);
      if (row_of[place] != tap.source[i]) {
        HorizontalPass(image.row(tap.source[i]), across, rows[place].data());
        row_of[place] = tap.source[i];
      }
      h[i] = rows[place].data();
      b[i] = static_cast<float>(tap.weight[i]) * 0x1p-22f;
    }
    VerticalPass(h, b, row_samples, out.row(y));
  }
  return out;
}

}  // namespace deepinfer::vision
