// SPDX-License-Identifier: Apache-2.0
#include "model/finite.h"

#include <cstring>

namespace deepinfer::model {

namespace {

// Index of the first element of the wrong kind, or -1. The accumulating loops have no branch so
// that they run at the speed of memory; the exact place is looked up only when there is one.
template <typename T, typename IsBad>
int64_t FindBad(const uint8_t* bytes, int64_t num_bytes, IsBad is_bad) {
  const int64_t count = num_bytes / static_cast<int64_t>(sizeof(T));
  const auto at = [&](int64_t i) {
    T value;
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  };
  bool any = false;
  for (int64_t i = 0; i < count; ++i) any |= is_bad(at(i));
  if (!any) return -1;
  int64_t i = 0;
  while (!is_bad(at(i))) ++i;
  return i;
}

}  // namespace

int64_t FirstNonFinite(DType dtype, const uint8_t* bytes, int64_t num_bytes) {
  switch (dtype) {
    case DType::kF32:
      return FindBad<uint32_t>(
          bytes, num_bytes, [](uint32_t v) { return (v & 0x7f800000u) == 0x7f800000u; });
    case DType::kBf16:
      return FindBad<uint16_t>(
          bytes, num_bytes, [](uint16_t v) { return (v & 0x7f80u) == 0x7f80u; });
    case DType::kF16:
      return FindBad<uint16_t>(
          bytes, num_bytes, [](uint16_t v) { return (v & 0x7c00u) == 0x7c00u; });
    case DType::kF8E4M3:
      return FindBad<uint8_t>(bytes, num_bytes, [](uint8_t v) { return (v & 0x7fu) == 0x7fu; });
    case DType::kF8E8M0:
      return FindBad<uint8_t>(bytes, num_bytes, [](uint8_t v) { return v == 0xffu; });
    default:
      return -1;
  }
}

}  // namespace deepinfer::model
