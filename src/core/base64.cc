// SPDX-License-Identifier: Apache-2.0
#include "core/base64.h"

#include <array>
#include <cstdint>

#include <fmt/format.h>

namespace deepinfer {

namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int8_t, 256> MakeDecodeTable() {
  std::array<int8_t, 256> table{};
  table.fill(-1);
  for (size_t i = 0; i < kAlphabet.size(); ++i) table[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int8_t>(i);
  return table;
}

constexpr std::array<int8_t, 256> kDecode = MakeDecodeTable();

}  // namespace

Result<std::string> DecodeBase64(std::string_view text) {
  if (text.size() % 4 != 0) return InvalidArgument(fmt::format("base64 text has {} characters, which is no multiple of 4", text.size()));
  const size_t num_pad = text.ends_with("==") ? 2 : (text.ends_with('=') ? 1 : 0);
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size() - num_pad; ++i) {
    const int value = kDecode[static_cast<uint8_t>(text[i])];
    if (value < 0) return InvalidArgument(fmt::format("base64 text has a character at offset {} that is none of its alphabet", i));
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (i % 4 == 3) {
      out += {static_cast<char>(bits >> 16 & 0xff), static_cast<char>(bits >> 8 & 0xff), static_cast<char>(bits & 0xff)};
      bits = 0;
    }
  }
  if (num_pad == 1) out += {static_cast<char>(bits >> 10 & 0xff), static_cast<char>(bits >> 2 & 0xff)};
  if (num_pad == 2) out += static_cast<char>(bits >> 4 & 0xff);
  return out;
}

std::string EncodeBase64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0u);
    for (size_t j = 0; j < 4; ++j) out += i + j < bytes.size() + 1 ? kAlphabet[bits >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

}  // namespace deepinfer
