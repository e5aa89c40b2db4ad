// SPDX-License-Identifier: Apache-2.0
//
// Encoded bytes to RGB: JPEG, PNG, GIF (first frame) and WebP (first frame), told apart by content. Nothing large is allocated
// before the header has passed the limits. EXIF orientation, colour profiles and gamma are ignored. An incomplete file is
// never accepted in part. Any thread may call these.
#pragma once

#include <cstdint>
#include <span>

#include "vision/image.h"
#include "vision/image_fault.h"

namespace deepinfer::vision {

enum class ImageFormat { kUnknown, kJpeg, kPng, kGif, kWebp };

// What becomes of alpha, of 16 bits and of CMYK.
enum class PixelRule {
  kServer,     // as the public service: blended on 253; v/257 rounded
  kReference,  // as the model's own transform: alpha dropped; high byte
};

struct DecodeLimits {
  int64_t max_bytes = int64_t{32} << 20;
  int max_side = 8192;
};

ImageFormat DetectFormat(std::span<const uint8_t> bytes);

// Reads the header only.
ImageFault ReadImageSize(std::span<const uint8_t> bytes, const DecodeLimits& limits, Size& size);

// `image` is unspecified after a fault.
ImageFault DecodeImage(std::span<const uint8_t> bytes, const DecodeLimits& limits, PixelRule rule, Image& image);

}  // namespace deepinfer::vision
