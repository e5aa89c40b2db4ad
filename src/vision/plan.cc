// SPDX-License-Identifier: Apache-2.0
#include "vision/plan.h"

#include <algorithm>
#include <cmath>

namespace deepinfer::vision {

namespace {

int CeilDiv(int value, int divisor) { return (value + divisor - 1) / divisor; }

// Half to even: the default rounding mode.
int RoundHalfEven(double value) { return static_cast<int>(std::nearbyint(value)); }

void SetGrids(const PlanConfig& config, Plan& plan) {
  plan.patch_grid = {plan.canvas.width / config.patch_size, plan.canvas.height / config.patch_size};
  plan.token_grid = {CeilDiv(plan.patch_grid.width, config.downsample_ratio),
                     CeilDiv(plan.patch_grid.height, config.downsample_ratio)};
  plan.num_tokens = plan.token_grid.height * (plan.token_grid.width + 1) + 2;
}

// The largest canvas of about this shape whose span fits.
Size ShrinkToTokens(double w, double h, const PlanConfig& config) {
  const int cell = config.patch_size * config.downsample_ratio;
  const double p = config.patch_size;
  const double tokens = config.max_image_tokens;
  const double q = h / w;
  const double mw = std::sqrt((tokens - 2) / q + 0.25) - 0.5;
  const double mh = mw * q;
  if (mw < 1) return {cell, (config.max_image_tokens - 2) / 2 * cell};
  if (mh < 1) return {(config.max_image_tokens - 3) * cell, cell};
  const double beta = std::min(std::floor(mw) * cell / w, std::floor(mh) * cell / h);
  return {static_cast<int>(std::floor(w * beta / p)) * config.patch_size,
          static_cast<int>(std::floor(h * beta / p)) * config.patch_size};
}

}  // namespace

Plan PlanImage(Size size, const PlanConfig& config) {
  double w = size.width;
  double h = size.height;
  if (config.max_wh_ratio.has_value() && w > h * *config.max_wh_ratio) w = h * *config.max_wh_ratio;
  if (w * h > 0 && w * h < config.min_pixels) {
    const double r = std::sqrt(config.min_pixels / (w * h));
    w = std::trunc(w * r);
    h = std::trunc(h * r);
  }
  const double p = config.patch_size;
  Plan plan;
  plan.canvas = {static_cast<int>(std::ceil(w / p)) * config.patch_size,
                 static_cast<int>(std::ceil(h / p)) * config.patch_size};
  SetGrids(config, plan);
  if (plan.num_tokens > config.max_image_tokens) {
    plan.canvas = ShrinkToTokens(w, h, config);
    SetGrids(config, plan);
  }
  return plan;
}

std::optional<Plan> FitImage(Size size, const PlanConfig& config) {
  constexpr int kMaxPasses = 32;
  constexpr int kMaxSide = 16383;  // of a WebP file, in which the service passes pictures on
  const int p = config.patch_size;
  const int longest = kMaxSide / p * p;
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    Plan plan = PlanImage(size, config);
    Size next = plan.canvas;
    if (std::max(next.width, next.height) > kMaxSide) {
      const double w = next.width;
      const double h = next.height;
      if (next.width > next.height) {
        next = {longest, static_cast<int>(std::ceil(h * longest / w / p)) * p};
      } else {
        next = {static_cast<int>(std::ceil(w * longest / h / p)) * p, longest};
      }
    }
    if (next == size) {
      plan.canvas = next;
      SetGrids(config, plan);
      return plan;
    }
    size = next;
  }
  return std::nullopt;
}

Size LowDetailSize(Size size) {
  constexpr double kLongest = 512;
  const int longest = std::max(size.width, size.height);
  if (longest <= kLongest) return size;
  const double s = kLongest / longest;
  return {std::max(1, static_cast<int>(std::floor(size.width * s + 0.5))),
          std::max(1, static_cast<int>(std::floor(size.height * s + 0.5)))};
}

Placement PlaceImage(Size size, Size canvas, const PlanConfig& config) {
  const double w = size.width;
  const double h = size.height;
  const double ratio = w / h;
  const double canvas_ratio = static_cast<double>(canvas.width) / canvas.height;
  Size inside = canvas;
  if (ratio > canvas_ratio) inside.height = RoundHalfEven(h / w * canvas.width);
  if (ratio < canvas_ratio) inside.width = RoundHalfEven(w / h * canvas.height);
  const bool is_stretched = config.max_wh_ratio.has_value() && w >= *config.max_wh_ratio * h;
  if (is_stretched || inside.width == 0 || inside.height == 0) inside = canvas;
  return {.size = inside,
          .left = RoundHalfEven((canvas.width - inside.width) * 0.5),
          .top = RoundHalfEven((canvas.height - inside.height) * 0.5)};
}

}  // namespace deepinfer::vision
