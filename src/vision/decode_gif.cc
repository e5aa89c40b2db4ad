// SPDX-License-Identifier: Apache-2.0
//
// GIF, first frame only: the frame's pixels on a transparent logical screen. Every failure is kDecode.
#include <array>
#include <vector>

#include "vision/codec.h"

namespace deepinfer::vision {

namespace {

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  // The next `count` bytes; an empty span (and failed()) where they are not there.
  std::span<const uint8_t> Take(size_t count) {
    if (count > bytes_.size() - position_) {
      failed_ = true;
      return {};
    }
    position_ += count;
    return bytes_.subspan(position_ - count, count);
  }
  int Byte() {
    const auto one = Take(1);
    return one.empty() ? 0 : one[0];
  }
  int Short() {
    const auto two = Take(2);
    return two.empty() ? 0 : two[0] | two[1] << 8;
  }
  bool failed() const { return failed_; }

 private:
  std::span<const uint8_t> bytes_;
  size_t position_ = 0;
  bool failed_ = false;
};

// Data in sub-blocks up to the terminator, which must be there.
bool TakeBlocks(Reader& reader, std::vector<uint8_t>* data) {
  for (;;) {
    const int length = reader.Byte();
    if (reader.failed()) return false;
    if (length == 0) return true;
    const auto block = reader.Take(static_cast<size_t>(length));
    if (reader.failed()) return false;
    if (data != nullptr) data->insert(data->end(), block.begin(), block.end());
  }
}

// Codes of growing width to palette indices. False when the data ends, or breaks, before `indices` is full.
bool DecodeLzw(std::span<const uint8_t> data, int min_bits, std::span<uint8_t> indices) {
  constexpr int kMaxCodes = 4096;
  std::array<uint16_t, kMaxCodes> prefix{};
  std::array<uint8_t, kMaxCodes> last;
  std::array<uint8_t, kMaxCodes> first;
  std::array<uint16_t, kMaxCodes> length;
  const int clear = 1 << min_bits;
  const int end = clear + 1;
  for (int i = 0; i < clear; ++i) {
    const auto at = static_cast<size_t>(i);
    first[at] = last[at] = static_cast<uint8_t>(i);
    length[at] = 1;
  }
  int next = end + 1;
  int bits = min_bits + 1;
  int previous = -1;
  uint32_t window = 0;
  int num_bits = 0;
  size_t done = 0;
  size_t position = 0;
  while (done < indices.size()) {
    while (num_bits < bits) {
      if (position == data.size()) return false;
      window |= static_cast<uint32_t>(data[position++]) << num_bits;
      num_bits += 8;
    }
    const int code = static_cast<int>(window & ((1u << bits) - 1));
    window >>= bits;
    num_bits -= bits;
    if (code == clear) {
      next = end + 1;
      bits = min_bits + 1;
      previous = -1;
      continue;
    }
    if (code == end) return false;
    if (code > next || (code == next && previous < 0)) return false;
    if (previous < 0 && code > end) return false;
    if (previous >= 0 && next < kMaxCodes) {
      // The new entry is the previous string and the first value of this one; `code == next` is that very entry.
      const auto entry = static_cast<size_t>(next);
      const auto before = static_cast<size_t>(previous);
      prefix[entry] = static_cast<uint16_t>(previous);
      first[entry] = first[before];
      last[entry] = code == next ? first[before] : first[static_cast<size_t>(code)];
      length[entry] = static_cast<uint16_t>(length[before] + 1);
      ++next;
      if (next == 1 << bits && bits < 12) ++bits;
    } else if (code >= next) {
      return false;
    }
    // The string of a code is known from its end; what passes the frame's end is dropped.
    const size_t start = done;
    done += length[static_cast<size_t>(code)];
    int c = code;
    for (size_t at = done; at-- > start; c = prefix[static_cast<size_t>(c)]) {
      if (at < indices.size()) indices[at] = last[static_cast<size_t>(c)];
    }
    previous = code;
  }
  return true;
}

// Rows of an interlaced frame come in four passes.
std::vector<int> RowOrder(int height, bool is_interlaced) {
  std::vector<int> rows;
  rows.reserve(static_cast<size_t>(height));
  constexpr std::array<std::array<int, 2>, 4> kPasses = {{{0, 8}, {4, 8}, {2, 4}, {1, 2}}};
  if (!is_interlaced) {
    for (int y = 0; y < height; ++y) rows.push_back(y);
    return rows;
  }
  for (const auto& [start, step] : kPasses) {
    for (int y = start; y < height; y += step) rows.push_back(y);
  }
  return rows;
}

struct Frame {
  int left = 0, top = 0, width = 0, height = 0;
  int transparent = -1;  // palette index, or none
  bool is_interlaced = false;
  int min_bits = 0;
  std::span<const uint8_t> palette;
  std::vector<uint8_t> data;
};

// Everything up to the end of the first frame's data.
bool ReadFrame(Reader& reader, Frame& frame) {
  for (;;) {
    const int block = reader.Byte();
    if (reader.failed()) return false;
    if (block == 0x2C) break;
    if (block != 0x21) return false;  // a trailer, or no block at all
    if (reader.Byte() == 0xF9) {
      const int length = reader.Byte();
      const auto control = reader.Take(static_cast<size_t>(length));
      if (reader.failed() || length < 4) return false;
      frame.transparent = (control[0] & 1) != 0 ? control[3] : -1;
    }
    if (!TakeBlocks(reader, nullptr)) return false;
  }
  frame.left = reader.Short();
  frame.top = reader.Short();
  frame.width = reader.Short();
  frame.height = reader.Short();
  const int flags = reader.Byte();
  frame.is_interlaced = (flags & 0x40) != 0;
  if ((flags & 0x80) != 0) frame.palette = reader.Take(size_t{3} << ((flags & 7) + 1));
  frame.min_bits = reader.Byte();
  return !reader.failed() && TakeBlocks(reader, &frame.data);
}

void Draw(const Frame& frame, std::span<const uint8_t> indices, PixelRule rule, Image& image) {
  const std::vector<int> rows = RowOrder(frame.height, frame.is_interlaced);
  const uint8_t* index = indices.data();
  for (const int y : rows) {
    uint8_t* out = image.row(frame.top + y) + size_t{3} * static_cast<size_t>(frame.left);
    for (int x = 0; x < frame.width; ++x, ++index, out += 3) {
      if (*index == frame.transparent && rule == PixelRule::kServer) continue;
      for (size_t c = 0; c < 3; ++c) out[c] = frame.palette[size_t{3} * *index + c];
    }
  }
}

}  // namespace

ImageFault ReadGif(const CodecInput& input, Size& size, Image* image) {
  Reader reader(input.bytes);
  const auto signature = reader.Take(6);
  if (reader.failed() || (signature[4] != '7' && signature[4] != '9') || signature[3] != '8' || signature[5] != 'a') {
    return ImageFault::kDecode;
  }
  size.width = reader.Short();
  size.height = reader.Short();
  const int flags = reader.Byte();
  reader.Take(2);  // background colour and aspect ratio: not used
  std::span<const uint8_t> global;
  if ((flags & 0x80) != 0) global = reader.Take(size_t{3} << ((flags & 7) + 1));
  if (reader.failed() || size.width == 0 || size.height == 0) return ImageFault::kDecode;
  if (size.width > input.max_side || size.height > input.max_side) return ImageFault::kImageDimensionsTooLarge;

  Frame frame;
  if (!ReadFrame(reader, frame)) return ImageFault::kDecode;
  if (frame.palette.empty()) frame.palette = global;
  if (frame.palette.empty() || frame.width == 0 || frame.height == 0 || frame.min_bits < 2 || frame.min_bits > 8 ||
      frame.left + frame.width > size.width || frame.top + frame.height > size.height) {
    return ImageFault::kDecode;
  }
  if (image == nullptr) return ImageFault::kNone;

  std::vector<uint8_t> indices(static_cast<size_t>(frame.width) * static_cast<size_t>(frame.height));
  if (!DecodeLzw(frame.data, frame.min_bits, indices)) return ImageFault::kDecode;
  const size_t num_colours = frame.palette.size() / 3;
  for (const uint8_t index : indices) {
    if (index >= num_colours && index != frame.transparent) return ImageFault::kDecode;
  }
  image->Allocate(size);
  if (input.rule == PixelRule::kServer) {
    image->rgb.assign(image->rgb.size(), kBackground);
  } else {
    // The model's own transform fills with the transparent index, or with index 0.
    const auto fill = static_cast<size_t>(frame.transparent >= 0 ? frame.transparent : 0);
    if (fill >= num_colours) return ImageFault::kDecode;
    for (size_t i = 0; i < image->rgb.size(); ++i) image->rgb[i] = frame.palette[fill * 3 + i % 3];
  }
  Draw(frame, indices, input.rule, *image);
  return ImageFault::kNone;
}

}  // namespace deepinfer::vision
