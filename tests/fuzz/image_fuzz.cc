// SPDX-License-Identifier: Apache-2.0
//
// The four decoders, chosen by the input's own content, in both pixel rules: a picture of the size the header says, or a fault.
#include <cstdint>
#include <cstdlib>

#include "vision/decode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using deepinfer::vision::ImageFault;
  const deepinfer::vision::DecodeLimits limits;
  const std::span<const uint8_t> bytes(data, size);
  deepinfer::vision::Size header;
  const ImageFault fault = deepinfer::vision::ReadImageSize(bytes, limits, header);
  // Small pictures only: a large one shows nothing more and takes long.
  if (fault == ImageFault::kNone && int64_t{header.width} * header.height > 1 << 17) return 0;
  for (const auto rule : {deepinfer::vision::PixelRule::kServer, deepinfer::vision::PixelRule::kReference}) {
    deepinfer::vision::Image image;
    const ImageFault decoded = deepinfer::vision::DecodeImage(bytes, limits, rule, image);
    if (fault != ImageFault::kNone && decoded != fault) std::abort();
    if (decoded == ImageFault::kNone && image.size != header) std::abort();
  }
  return 0;
}
