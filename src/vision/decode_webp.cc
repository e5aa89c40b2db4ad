// SPDX-License-Identifier: Apache-2.0
//
// WebP through libwebp: still pictures directly, the first frame of animated ones through its demultiplexer.
#include <memory>
#include <vector>

#include <webp/decode.h>
#include <webp/demux.h>

#include "vision/codec.h"

namespace deepinfer::vision {

namespace {

uint32_t RiffSize(std::span<const uint8_t> bytes) {
  return static_cast<uint32_t>(bytes[4]) | static_cast<uint32_t>(bytes[5]) << 8 | static_cast<uint32_t>(bytes[6]) << 16 |
         static_cast<uint32_t>(bytes[7]) << 24;
}

// The frame header decides whether a file has a header at all, not the container's size: where that size is in the way, the
// header is read from a copy with the largest one.
bool ReadFeatures(std::span<const uint8_t> bytes, WebPBitstreamFeatures& features) {
  if (WebPGetFeatures(bytes.data(), bytes.size(), &features) == VP8_STATUS_OK) return true;
  std::vector<uint8_t> copy(bytes.begin(), bytes.end());
  copy[4] = 0xF6;
  copy[5] = copy[6] = copy[7] = 0xFF;
  return WebPGetFeatures(copy.data(), copy.size(), &features) == VP8_STATUS_OK;
}

void ToRgb(const uint8_t* rgba, bool is_blended, Image& image) {
  uint8_t* out = image.rgb.data();
  const size_t num_pixels = image.rgb.size() / 3;
  for (size_t i = 0; i < num_pixels; ++i, rgba += 4, out += 3) {
    for (int c = 0; c < 3; ++c) out[c] = is_blended ? BlendOnBackground(rgba[c], rgba[3]) : rgba[c];
  }
}

bool DecodeFirstFrame(std::span<const uint8_t> bytes, bool is_blended, Image& image) {
  WebPAnimDecoderOptions options;
  if (WebPAnimDecoderOptionsInit(&options) == 0) return false;
  options.color_mode = MODE_RGBA;
  options.use_threads = 0;
  const WebPData data{bytes.data(), bytes.size()};
  const std::unique_ptr<WebPAnimDecoder, decltype(&WebPAnimDecoderDelete)> decoder(WebPAnimDecoderNew(&data, &options),
                                                                                  WebPAnimDecoderDelete);
  WebPAnimInfo info;
  uint8_t* canvas = nullptr;
  int timestamp_ms = 0;
  if (decoder == nullptr || WebPAnimDecoderGetInfo(decoder.get(), &info) == 0 ||
      static_cast<int>(info.canvas_width) != image.size.width || static_cast<int>(info.canvas_height) != image.size.height ||
      WebPAnimDecoderGetNext(decoder.get(), &canvas, &timestamp_ms) == 0) {
    return false;
  }
  ToRgb(canvas, is_blended, image);
  return true;
}

}  // namespace

ImageFault ReadWebp(const CodecInput& input, Size& size, Image* image) {
  WebPBitstreamFeatures features;
  if (!ReadFeatures(input.bytes, features)) return ImageFault::kDecode;
  size = {features.width, features.height};
  if (size.width > input.max_side || size.height > input.max_side) return ImageFault::kImageDimensionsTooLarge;
  if (image == nullptr) return ImageFault::kNone;
  if (uint64_t{RiffSize(input.bytes)} + 8 > input.bytes.size()) return ImageFault::kEmptyImage;

  image->Allocate(size);
  const bool is_blended = features.has_alpha != 0 && input.rule == PixelRule::kServer;
  if (features.has_animation != 0) {
    return DecodeFirstFrame(input.bytes, is_blended, *image) ? ImageFault::kNone : ImageFault::kEmptyImage;
  }
  if (!is_blended) {
    const uint8_t* done = WebPDecodeRGBInto(input.bytes.data(), input.bytes.size(), image->rgb.data(), image->rgb.size(),
                                            static_cast<int>(image->row_bytes()));
    return done != nullptr ? ImageFault::kNone : ImageFault::kEmptyImage;
  }
  std::vector<uint8_t> rgba(image->rgb.size() / 3 * 4);
  if (WebPDecodeRGBAInto(input.bytes.data(), input.bytes.size(), rgba.data(), rgba.size(), size.width * 4) == nullptr) {
    return ImageFault::kEmptyImage;
  }
  ToRgb(rgba.data(), true, *image);
  return ImageFault::kNone;
}

}  // namespace deepinfer::vision
