// SPDX-License-Identifier: Apache-2.0
#include "server/trace_context.h"

#include <fmt/format.h>

namespace deepinfer::server {

namespace {

// Lower-case digits only, as the standard demands.
bool FromHex(std::string_view text, uint64_t& value) {
  value = 0;
  for (const char c : text) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    value = value << 4 | static_cast<uint64_t>(digit);
  }
  return true;
}

}  // namespace

std::string SpanIdText(uint64_t id) { return fmt::format("{:016x}", id); }

std::string TraceContext::TraceId() const { return fmt::format("{:016x}{:016x}", trace_high, trace_low); }

std::string TraceContext::Header() const { return fmt::format("00-{}-{}-{:02x}", TraceId(), SpanIdText(span_id), is_sampled ? 1 : 0); }

bool ParseTraceparent(std::string_view header, TraceContext& context) {
  constexpr size_t kSize = 55;
  if (header.size() < kSize || header[2] != '-' || header[35] != '-' || header[52] != '-') return false;
  uint64_t version = 0, flags = 0;
  TraceContext parsed;
  if (!FromHex(header.substr(0, 2), version) || !FromHex(header.substr(3, 16), parsed.trace_high) ||
      !FromHex(header.substr(19, 16), parsed.trace_low) || !FromHex(header.substr(36, 16), parsed.parent_id) ||
      !FromHex(header.substr(53, 2), flags)) {
    return false;
  }
  if (version == 255 || (version == 0 && header.size() != kSize) || (header.size() > kSize && header[kSize] != '-')) return false;
  if (!parsed.is_set() || parsed.parent_id == 0) return false;
  parsed.is_sampled = (flags & 1) != 0;
  context = parsed;
  return true;
}

}  // namespace deepinfer::server
