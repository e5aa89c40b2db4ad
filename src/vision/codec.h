// SPDX-License-Identifier: Apache-2.0
//
// The four decoders behind decode.h, and what they share. Each reads the header, reports a side above `max_side`, and decodes
// pixels only where `image` is not null.
#pragma once

#include <cstdint>
#include <span>

#include "vision/decode.h"

namespace deepinfer::vision {

struct CodecInput {
  std::span<const uint8_t> bytes;
  int max_side = 0;
  PixelRule rule = PixelRule::kServer;
};

ImageFault ReadJpeg(const CodecInput& input, Size& size, Image* image);
ImageFault ReadPng(const CodecInput& input, Size& size, Image* image);
ImageFault ReadGif(const CodecInput& input, Size& size, Image* image);
ImageFault ReadWebp(const CodecInput& input, Size& size, Image* image);

// The background of the public service under transparent pixels.
inline constexpr int kBackground = 253;

// One channel over the background; exact integer arithmetic.
inline uint8_t BlendOnBackground(int value, int alpha) {
  return static_cast<uint8_t>((value * alpha + kBackground * (255 - alpha) + 127) / 255);
}

}  // namespace deepinfer::vision
