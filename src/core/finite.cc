// SPDX-License-Identifier: Apache-2.0
#include "core/finite.h"

#include <cstring>

namespace deepinfer {

namespace {

// Index of the first element of the wrong kind, or -1. `exponent` is the bits of an element that are all ones in such a value,
// `lowest` the lowest of them: adding it carries into the sign bit, which is then the mark. Eight bytes at a time and without a
// branch, so that it runs at the speed of memory; the exact place is looked up only when there is one.
template <typename T>
int64_t FindBad(const uint8_t* bytes, int64_t num_bytes, T exponent, T lowest, bool needs_sign = false) {
  constexpr uint64_t kOnes = ~uint64_t{0} / static_cast<T>(~T{0});  // 1 in every element of a word
  constexpr int64_t kSize = static_cast<int64_t>(sizeof(T));
  const uint64_t mask = kOnes * exponent, add = kOnes * lowest;
  const auto marks = [&](uint64_t x) { return ((x & mask) + add) & (needs_sign ? x : ~uint64_t{0}); };
  constexpr uint64_t kSigns = kOnes << (8 * kSize - 1);
  uint64_t any = 0;
  const int64_t whole = num_bytes / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    uint64_t x;
    std::memcpy(&x, bytes + i, 8);
    any |= marks(x);
  }
  const auto is_bad = [&](int64_t i) {
    T x;
    std::memcpy(&x, bytes + i * kSize, sizeof(T));
    return (marks(x) >> (8 * kSize - 1) & 1) != 0;
  };
  const int64_t count = num_bytes / kSize;
  for (int64_t i = (any & kSigns) != 0 ? 0 : whole / kSize; i < count; ++i)
    if (is_bad(i)) return i;
  return -1;
}

}  // namespace

int64_t FirstNonFinite(DType dtype, const uint8_t* bytes, int64_t num_bytes) {
  switch (dtype) {
    case DType::kF32:
      return FindBad<uint32_t>(bytes, num_bytes, 0x7f800000u, 0x00800000u);
    case DType::kBf16:
      return FindBad<uint16_t>(bytes, num_bytes, 0x7f80u, 0x0080u);
    case DType::kF16:
      return FindBad<uint16_t>(bytes, num_bytes, 0x7c00u, 0x0400u);
    case DType::kF8E4M3:
      return FindBad<uint8_t>(bytes, num_bytes, 0x7fu, 0x01u);
    case DType::kF8E8M0:
      return FindBad<uint8_t>(bytes, num_bytes, 0x7fu, 0x01u, true);
    default:
      return -1;
  }
}

}  // namespace deepinfer
