// SPDX-License-Identifier: Apache-2.0
#include "vision/preprocess.h"

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "vision/resize.h"

namespace deepinfer::vision {

namespace {

constexpr uint8_t kPadding = 127;  // trunc(0.5 * 255)

std::array<uint16_t, 256> MakeTable() {
  std::array<uint16_t, 256> table;
  for (size_t i = 0; i < table.size(); ++i) {
    const float value = (static_cast<float>(i) / 255.0f - 0.5f) / 0.5f;
    const auto bits = std::bit_cast<uint32_t>(value);
    table[i] = static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);  // to nearest even
  }
  return table;
}

const std::array<uint16_t, 256>& Table() {
  static const std::array<uint16_t, 256> table = MakeTable();
  return table;
}

}  // namespace

ImageFault PlaceOnCanvas(Image image, const PlanConfig& config, PixelRule rule, Detail detail, PreparedImage& prepared) {
  prepared.decoded = image.size;
  if (rule == PixelRule::kServer) {
    if (detail == Detail::kLow) {
      const Size low = LowDetailSize(image.size);
      if (low != image.size) image = ResizeArea(image, low);
    }
    const auto plan = FitImage(image.size, config);
    if (!plan.has_value()) return ImageFault::kTokenBudget;
    prepared.plan = *plan;
  } else {
    prepared.plan = PlanImage(image.size, config);
  }
  const Size canvas = prepared.plan.canvas;
  prepared.placement = PlaceImage(image.size, canvas, config);
  const Size inside = prepared.placement.size;
  if (inside != image.size) {
    image = rule == PixelRule::kServer ? ResizeCubic(image, inside) : ResizePillowBicubic(image, inside);
  }
  if (inside == canvas) {
    prepared.canvas = std::move(image);
    return ImageFault::kNone;
  }
  prepared.canvas.size = canvas;
  prepared.canvas.rgb.assign(static_cast<size_t>(canvas.width) * static_cast<size_t>(canvas.height) * 3, kPadding);
  for (int y = 0; y < inside.height; ++y) {
    std::memcpy(prepared.canvas.row(prepared.placement.top + y) + size_t{3} * static_cast<size_t>(prepared.placement.left),
                image.row(y), image.row_bytes());
  }
  return ImageFault::kNone;
}

ImageFault PrepareImage(std::span<const uint8_t> bytes,
                        const DecodeLimits& limits,
                        const PlanConfig& config,
                        PixelRule rule,
                        Detail detail,
                        PreparedImage& prepared) {
  Image image;
  if (const ImageFault fault = DecodeImage(bytes, limits, rule, image); fault != ImageFault::kNone) return fault;
  return PlaceOnCanvas(std::move(image), config, rule, detail, prepared);
}

uint16_t NormalizedBf16(uint8_t value) { return Table()[value]; }

std::vector<uint16_t> MakePatches(const Image& canvas, int patch_size) {
  const std::array<uint16_t, 256>& table = Table();
  const int across = canvas.size.width / patch_size;
  const int down = canvas.size.height / patch_size;
  std::vector<uint16_t> patches(static_cast<size_t>(across * down) * 3 * static_cast<size_t>(patch_size * patch_size));
  uint16_t* out = patches.data();
  for (int row = 0; row < down; ++row) {
    for (int column = 0; column < across; ++column) {
      for (int c = 0; c < 3; ++c) {
        for (int y = 0; y < patch_size; ++y) {
          const uint8_t* from = canvas.row(row * patch_size + y) + 3 * column * patch_size + c;
          for (int x = 0; x < patch_size; ++x) *out++ = table[from[3 * x]];
        }
      }
    }
  }
  return patches;
}

}  // namespace deepinfer::vision
