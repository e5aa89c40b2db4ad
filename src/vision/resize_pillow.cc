// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "vision/resize.h"

namespace deepinfer::vision {

namespace {

constexpr int kPrecisionBits = 22;

double Cubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0.0;
}

struct Kernel {
  int first = 0;             // source index of the first weight
  std::vector<int> weights;  // of 2^22
};

std::vector<Kernel> MakeKernels(int from, int to) {
  const double scale = static_cast<double>(from) / to;
  const double filter_scale = std::max(scale, 1.0);
  const double support = 2.0 * filter_scale;
  const double inverse = 1.0 / filter_scale;
  std::vector<Kernel> kernels(static_cast<size_t>(to));
  std::vector<double> weights;
  for (int d = 0; d < to; ++d) {
    const double center = (d + 0.5) * scale;
    const int lo = std::max(0, static_cast<int>(center - support + 0.5));
    const int hi = std::min(from, static_cast<int>(center + support + 0.5));
    weights.clear();
    double sum = 0.0;
    for (int i = 0; i < hi - lo; ++i) {
      weights.push_back(Cubic((i + lo - center + 0.5) * inverse));
      sum += weights.back();
    }
    Kernel& kernel = kernels[static_cast<size_t>(d)];
    kernel.first = lo;
    for (double w : weights) {
      if (sum != 0.0) w /= sum;
      kernel.weights.push_back(static_cast<int>(w * (1 << kPrecisionBits) + (w < 0 ? -0.5 : 0.5)));
    }
  }
  return kernels;
}

uint8_t Clip(int sum) { return static_cast<uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255)); }

Image AcrossPass(const Image& image, int width) {
  const std::vector<Kernel> kernels = MakeKernels(image.size.width, width);
  Image out;
  out.Allocate({width, image.size.height});
  for (int y = 0; y < out.size.height; ++y) {
    uint8_t* to = out.row(y);
    for (const Kernel& kernel : kernels) {
      const uint8_t* from = image.row(y) + 3 * kernel.first;
      int r = 1 << (kPrecisionBits - 1);
      int g = r;
      int b = r;
      for (const int weight : kernel.weights) {
        r += from[0] * weight;
        g += from[1] * weight;
        b += from[2] * weight;
        from += 3;
      }
      *to++ = Clip(r);
      *to++ = Clip(g);
      *to++ = Clip(b);
    }
  }
  return out;
}

Image DownPass(const Image& image, int height) {
  const std::vector<Kernel> kernels = MakeKernels(image.size.height, height);
  Image out;
  out.Allocate({image.size.width, height});
  std::vector<int> sums(out.row_bytes());
  for (int y = 0; y < height; ++y) {
    const Kernel& kernel = kernels[static_cast<size_t>(y)];
    std::fill(sums.begin(), sums.end(), 1 << (kPrecisionBits - 1));
    for (size_t i = 0; i < kernel.weights.size(); ++i) {
      const uint8_t* from = image.row(kernel.first + static_cast<int>(i));
      const int weight = kernel.weights[i];
      for (size_t k = 0; k < sums.size(); ++k) sums[k] += from[k] * weight;
    }
    uint8_t* to = out.row(y);
    for (size_t k = 0; k < sums.size(); ++k) to[k] = Clip(sums[k]);
  }
  return out;
}

}  // namespace

Image ResizePillowBicubic(const Image& image, Size size) {
  Image out = image.size.width == size.width ? image : AcrossPass(image, size.width);
  if (out.size.height != size.height) out = DownPass(out, size.height);
  return out;
}

}  // namespace deepinfer::vision
