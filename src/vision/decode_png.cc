// SPDX-License-Identifier: Apache-2.0
//
// PNG through libpng. Our own walk over the chunks before the first IDAT decides between a file without a readable header
// and one whose pixels are broken; the library is as strict as we need after that.
#include <csetjmp>
#include <cstring>
#include <vector>

#include <png.h>
#include <zlib.h>

#include "vision/codec.h"

namespace deepinfer::vision {

namespace {

constexpr size_t kSignatureBytes = 8;

uint32_t BigEndian(const uint8_t* p) {
  return static_cast<uint32_t>(p[0]) << 24 | static_cast<uint32_t>(p[1]) << 16 | static_cast<uint32_t>(p[2]) << 8 | p[3];
}

bool IsBitDepth(int colour, int depth) {
  switch (colour) {
    case 0: return depth == 1 || depth == 2 || depth == 4 || depth == 8 || depth == 16;
    case 3: return depth == 1 || depth == 2 || depth == 4 || depth == 8;
    case 2:
    case 4:
    case 6: return depth == 8 || depth == 16;
    default: return false;
  }
}

// IHDR's 13 bytes.
bool ReadIhdr(const uint8_t* p, Size& size) {
  const uint32_t width = BigEndian(p);
  const uint32_t height = BigEndian(p + 4);
  if (width == 0 || height == 0 || width > 0x7FFFFFFF || height > 0x7FFFFFFF) return false;
  size = {static_cast<int>(width), static_cast<int>(height)};
  return IsBitDepth(p[9], p[8]) && p[10] == 0 && p[11] == 0 && p[12] <= 1;
}

// From the signature to the type of the first IDAT: kNone where all of it can be read. `is_palette_bad`: a fault of the palette
// that counts as one of the pixels.
ImageFault WalkHeader(std::span<const uint8_t> bytes, Size& size, bool& is_palette_bad) {
  constexpr uint8_t kSignature[kSignatureBytes] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  if (bytes.size() < kSignatureBytes || std::memcmp(bytes.data(), kSignature, kSignatureBytes) != 0) {
    return ImageFault::kDecode;
  }
  size_t at = kSignatureBytes;
  bool has_palette = false;
  bool needs_palette = false;
  is_palette_bad = false;
  for (bool is_first = true;; is_first = false) {
    if (bytes.size() - at < 8) return ImageFault::kDecode;
    const uint32_t length = BigEndian(bytes.data() + at);
    const uint8_t* type = bytes.data() + at + 4;
    const bool is_ihdr = std::memcmp(type, "IHDR", 4) == 0;
    if (is_first != is_ihdr || length > 0x7FFFFFFF || (is_ihdr && length != 13)) return ImageFault::kDecode;
    if (std::memcmp(type, "IDAT", 4) == 0) break;
    if (bytes.size() - at - 8 < size_t{length} + 4) return ImageFault::kDecode;
    const bool is_critical = (type[0] & 0x20) == 0;
    const bool is_plte = std::memcmp(type, "PLTE", 4) == 0;
    if (is_critical) {
      const auto crc = static_cast<uint32_t>(crc32(0, type, length + 4));
      if (crc != BigEndian(type + 4 + length) || (!is_ihdr && !is_plte)) return ImageFault::kDecode;
    }
    if (is_ihdr) {
      if (!ReadIhdr(type + 4, size)) return ImageFault::kDecode;
      needs_palette = type[4 + 9] == 3;
    }
    if (is_plte) {
      has_palette = true;
      if (length % 3 != 0) is_palette_bad = true;
    }
    at += size_t{length} + 12;
  }
  if (needs_palette && !has_palette) is_palette_bad = true;
  return ImageFault::kNone;
}

struct Source {
  std::span<const uint8_t> bytes;
  size_t position = 0;
};

void ReadBytes(png_structp codec, png_bytep out, size_t count) {
  auto* source = static_cast<Source*>(png_get_io_ptr(codec));
  if (count > source->bytes.size() - source->position) png_error(codec, "out of data");
  std::memcpy(out, source->bytes.data() + source->position, count);
  source->position += count;
}
void Fail(png_structp codec, png_const_charp) { png_longjmp(codec, 1); }
void IgnoreWarning(png_structp, png_const_charp) {}

// One sample of a row as 8 bits.
struct Samples {
  bool is_16_bit;
  PixelRule rule;
  int operator()(const uint8_t* row, size_t i) const {
    if (!is_16_bit) return row[i];
    const int high = row[i * 2];
    if (rule == PixelRule::kReference) return high;
    return static_cast<int>(((high << 8 | row[i * 2 + 1]) * 255u + 32895u) >> 16);  // v/257, rounded
  }
};

void StoreRow(const uint8_t* row, size_t num_pixels, size_t channels, bool is_16_bit, PixelRule rule, uint8_t* out) {
  const Samples sample{is_16_bit, rule};
  const bool has_alpha = channels % 2 == 0;
  if (channels == 3 && !is_16_bit) {
    std::memcpy(out, row, num_pixels * 3);
    return;
  }
  for (size_t x = 0; x < num_pixels; ++x) {
    const size_t first = x * channels;
    const bool is_blended = has_alpha && rule == PixelRule::kServer;
    const int alpha = is_blended ? sample(row, first + channels - 1) : 255;
    for (size_t c = 0; c < 3; ++c) {
      const int value = sample(row, first + (channels >= 3 ? c : 0));
      out[x * 3 + c] = is_blended ? BlendOnBackground(value, alpha) : static_cast<uint8_t>(value);
    }
  }
}

// What longjmp leaves behind lives here, outside the frame that it leaves.
struct Decoding {
  Source source;
  std::vector<uint8_t> raw;
};

ImageFault DecodePixels(const CodecInput& input, bool is_palette_bad, Decoding& decoding, Image& image) {
  png_structp codec = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, Fail, IgnoreWarning);
  png_infop info = codec != nullptr ? png_create_info_struct(codec) : nullptr;
  volatile ImageFault fault = is_palette_bad ? ImageFault::kEmptyImage : ImageFault::kDecode;
  if (info == nullptr || setjmp(png_jmpbuf(codec)) != 0) {
    png_destroy_read_struct(&codec, &info, nullptr);
    return fault;
  }
  png_set_read_fn(codec, &decoding.source, ReadBytes);
  png_set_user_limits(codec, static_cast<png_uint_32>(input.max_side), static_cast<png_uint_32>(input.max_side));
  // Profiles, texts and gamma are not looked at, so that nothing is unpacked for them.
  png_set_keep_unknown_chunks(codec, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(codec, info);
  fault = ImageFault::kEmptyImage;

  const int colour = png_get_color_type(codec, info);
  const bool is_interlaced = png_get_interlace_type(codec, info) != PNG_INTERLACE_NONE;
  if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(codec);
  if (colour == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(codec);  // grey tRNS stays opaque
  if (colour == PNG_COLOR_TYPE_RGB && png_get_valid(codec, info, PNG_INFO_tRNS) != 0) png_set_tRNS_to_alpha(codec);
  const int num_passes = png_set_interlace_handling(codec);
  png_read_update_info(codec, info);

  const auto channels = static_cast<size_t>(png_get_channels(codec, info));
  const bool is_16_bit = png_get_bit_depth(codec, info) == 16;
  const size_t row_bytes = png_get_rowbytes(codec, info);
  const Size size = image.size;
  const auto num_pixels = static_cast<size_t>(size.width);
  decoding.raw.resize(row_bytes * (is_interlaced ? static_cast<size_t>(size.height) : 1));
  for (int pass = 0; pass < num_passes; ++pass) {
    for (int y = 0; y < size.height; ++y) {
      uint8_t* row = decoding.raw.data() + (is_interlaced ? row_bytes * static_cast<size_t>(y) : 0);
      png_read_row(codec, row, nullptr);
      if (pass == num_passes - 1) StoreRow(row, num_pixels, channels, is_16_bit, input.rule, image.row(y));
    }
  }
  png_read_end(codec, nullptr);  // up to a complete IEND, which must be there
  png_destroy_read_struct(&codec, &info, nullptr);
  return ImageFault::kNone;
}

}  // namespace

ImageFault ReadPng(const CodecInput& input, Size& size, Image* image) {
  bool is_palette_bad = false;
  if (const ImageFault fault = WalkHeader(input.bytes, size, is_palette_bad); fault != ImageFault::kNone) return fault;
  if (size.width > input.max_side || size.height > input.max_side) return ImageFault::kImageDimensionsTooLarge;
  if (image == nullptr) return ImageFault::kNone;
  image->Allocate(size);
  Decoding decoding;
  decoding.source.bytes = input.bytes;
  return DecodePixels(input, is_palette_bad, decoding, *image);
}

}  // namespace deepinfer::vision
