// SPDX-License-Identifier: Apache-2.0
//
// Arbitrary bytes as a safetensors file, and as a document of the strict JSON scanner. Views that
// are accepted must lie inside the file.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "model/json_scanner.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deepinfer::model;
  const std::vector<uint8_t> bytes(
      data, data + size);  // its own allocation, so that one byte too far is seen
  const auto tensors =
      SafetensorsFile::ParseBytes(bytes.data(), static_cast<int64_t>(bytes.size()), "fuzz");
  if (tensors.ok()) {
    unsigned sum = 0;
    for (const TensorView& view : *tensors) {
      if (view.num_bytes == 0) continue;
      if (view.data < bytes.data() || view.data + view.num_bytes > bytes.data() + bytes.size())
        std::abort();
      sum += view.data[0] + view.data[view.num_bytes - 1];
    }
    volatile unsigned sink = sum;
    (void)sink;
  }
  JsonScanner scanner(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!scanner.SkipValue(16) || !scanner.ExpectEnd()) (void)scanner.ErrorText();
  return 0;
}
