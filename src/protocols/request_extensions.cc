// SPDX-License-Identifier: Apache-2.0
#include "protocols/request_extensions.h"

namespace deepinfer::protocols {

namespace {
constexpr size_t kMaxCacheSaltBytes = 128;
}

void ReadExtensions(JsonReader& reader, std::string& cache_salt, std::optional<CacheMode>& cache_mode, std::optional<int>& priority) {
  cache_salt = reader.String("cache_salt").value_or("");
  if (cache_salt.size() > kMaxCacheSaltBytes) reader.Fail("cache_salt", "longer than 128 bytes");
  if (const auto mode = reader.String("cache_mode")) {
    if (*mode == "replay") {
      cache_mode = CacheMode::kReplay;
    } else if (*mode == "exact") {
      cache_mode = CacheMode::kExact;
    } else if (*mode == "off") {
      cache_mode = CacheMode::kOff;
    } else {
      reader.Fail("cache_mode", "expected replay, exact or off");
    }
  }
  if (const auto value = reader.Unsigned("priority", 2)) priority = static_cast<int>(*value);
}

}  // namespace deepinfer::protocols
