// SPDX-License-Identifier: Apache-2.0
//
// data: URLs: never more bytes than the limit, and never none without a fault.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "vision/data_url.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using deepinfer::vision::ImageFault;
  constexpr int64_t kMaxBytes = 1000;
  std::string bytes;
  const std::string_view url(reinterpret_cast<const char*>(data), size);
  const ImageFault fault = deepinfer::vision::ReadDataUrl(url, kMaxBytes, bytes);
  if (fault == ImageFault::kNone && (bytes.empty() || bytes.size() > kMaxBytes)) std::abort();
  return 0;
}
