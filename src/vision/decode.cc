// SPDX-License-Identifier: Apache-2.0
#include "vision/decode.h"

#include <cstring>

#include "vision/codec.h"

namespace deepinfer::vision {

namespace {

bool Holds(std::span<const uint8_t> bytes, size_t offset, const char* text) {
  const size_t length = std::strlen(text);
  return bytes.size() >= offset + length && std::memcmp(bytes.data() + offset, text, length) == 0;
}

ImageFault Read(std::span<const uint8_t> bytes, const DecodeLimits& limits, PixelRule rule, Size& size, Image* image) {
  if (bytes.empty()) return ImageFault::kEmptyImage;
  if (static_cast<int64_t>(bytes.size()) > limits.max_bytes) return ImageFault::kImageTooLarge;
  const CodecInput input{.bytes = bytes, .max_side = limits.max_side, .rule = rule};
  switch (DetectFormat(bytes)) {
    case ImageFormat::kJpeg: return ReadJpeg(input, size, image);
    case ImageFormat::kPng: return ReadPng(input, size, image);
    case ImageFormat::kGif: return ReadGif(input, size, image);
    case ImageFormat::kWebp: return ReadWebp(input, size, image);
    case ImageFormat::kUnknown: break;
  }
  return ImageFault::kUnsupportedMediaType;
}

}  // namespace

ImageFormat DetectFormat(std::span<const uint8_t> bytes) {
  if (Holds(bytes, 0, "\xFF\xD8\xFF")) return ImageFormat::kJpeg;
  if (Holds(bytes, 0, "\x89PNG")) return ImageFormat::kPng;
  if (Holds(bytes, 0, "GIF")) return ImageFormat::kGif;
  if (Holds(bytes, 8, "WEBP")) return ImageFormat::kWebp;
  return ImageFormat::kUnknown;
}

ImageFault ReadImageSize(std::span<const uint8_t> bytes, const DecodeLimits& limits, Size& size) {
  return Read(bytes, limits, PixelRule::kServer, size, nullptr);
}

ImageFault DecodeImage(std::span<const uint8_t> bytes, const DecodeLimits& limits, PixelRule rule, Image& image) {
  Size size;
  return Read(bytes, limits, rule, size, &image);
}

}  // namespace deepinfer::vision
