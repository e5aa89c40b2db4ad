// SPDX-License-Identifier: Apache-2.0
//
// Why an image is refused. The kinds are those of the public service; clients see one text for most of them, metrics and logs
// the kind.
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"

namespace deepinfer::vision {

enum class ImageFault {
  kNone,
  kEmptyImage,
  kUnsupportedMediaType,
  kDecode,
  kImageDimensionsTooLarge,
  kImageTooLarge,
  kInvalidDataUrl,
  kTokenBudget,  // the size never settled: ours, HTTP 500
};

std::string_view ImageFaultName(ImageFault fault);

// The error a client sees, for an image at `place` ("messages.0.content[1].image[0]").
Status ImageFaultStatus(ImageFault fault, std::string_view place);

}  // namespace deepinfer::vision
