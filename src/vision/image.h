// SPDX-License-Identifier: Apache-2.0
//
// A picture in memory: 8 bit RGB, row by row, no padding between rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer::vision {

struct Size {
  int width = 0;
  int height = 0;
  friend bool operator==(const Size&, const Size&) = default;
};

struct Image {
  Size size;
  std::vector<uint8_t> rgb;  // [height, width, 3]

  // Gives it a size; the pixels are zero.
  void Allocate(Size new_size) {
    size = new_size;
    rgb.assign(static_cast<size_t>(size.width) * static_cast<size_t>(size.height) * 3, 0);
  }
  size_t row_bytes() const { return static_cast<size_t>(size.width) * 3; }
  uint8_t* row(int y) { return rgb.data() + static_cast<size_t>(y) * row_bytes(); }
  const uint8_t* row(int y) const { return rgb.data() + static_cast<size_t>(y) * row_bytes(); }
};

}  // namespace deepinfer::vision
