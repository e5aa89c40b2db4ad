// SPDX-License-Identifier: Apache-2.0
//
// From encoded bytes to the canvas the model sees, and from the canvas to patches. kServer is the public service's way (cubic,
// fixed point of the size, low detail); kReference is the model's own transform (Pillow's bicubic).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vision/decode.h"
#include "vision/plan.h"

namespace deepinfer::vision {

enum class Detail { kHigh, kLow };  // low: kServer only

struct PreparedImage {
  Size decoded;         // the picture as decoded
  Placement placement;  // of the picture inside the canvas
  Plan plan;
  Image canvas;  // [plan.canvas]
};

ImageFault PrepareImage(std::span<const uint8_t> bytes,
                        const DecodeLimits& limits,
                        const PlanConfig& config,
                        PixelRule rule,
                        Detail detail,
                        PreparedImage& prepared);

// The same from pixels.
ImageFault PlaceOnCanvas(Image image, const PlanConfig& config, PixelRule rule, Detail detail, PreparedImage& prepared);

// bf16 bits of ((v / 255) - 0.5) / 0.5 in float32.
uint16_t NormalizedBf16(uint8_t value);

// [num_patches, 3, patch, patch] bf16 bits, patches in reading order.
std::vector<uint16_t> MakePatches(const Image& canvas, int patch_size);

}  // namespace deepinfer::vision
