// SPDX-License-Identifier: Apache-2.0
//
// Fields of fixed width in byte strings, little-endian as they are in memory.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "core/check.h"

namespace deepinfer::kvstore {

static_assert(std::endian::native == std::endian::little, "stored integers are little-endian");

template <typename T>
void PutField(std::span<uint8_t> bytes, size_t offset, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  DI_DCHECK(offset + sizeof(T) <= bytes.size());
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

template <typename T>
T GetField(std::span<const uint8_t> bytes, size_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  DI_DCHECK(offset + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace deepinfer::kvstore
