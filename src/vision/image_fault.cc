// SPDX-License-Identifier: Apache-2.0
#include "vision/image_fault.h"

#include <fmt/format.h>

namespace deepinfer::vision {

std::string_view ImageFaultName(ImageFault fault) {
  switch (fault) {
    case ImageFault::kNone: return "None";
    case ImageFault::kEmptyImage: return "EmptyImage";
    case ImageFault::kUnsupportedMediaType: return "UnsupportedMediaType";
    case ImageFault::kDecode: return "Decode";
    case ImageFault::kImageDimensionsTooLarge: return "ImageDimensionsTooLarge";
    case ImageFault::kImageTooLarge: return "ImageTooLarge";
    case ImageFault::kInvalidDataUrl: return "InvalidDataUrl";
    case ImageFault::kTokenBudget: return "TokenBudget";
  }
  return "None";
}

Status ImageFaultStatus(ImageFault fault, std::string_view place) {
  switch (fault) {
    case ImageFault::kNone: return Status::Ok();
    case ImageFault::kImageTooLarge:
      return InvalidArgument(fmt::format("{}: image file size exceeds limit 32 MB", place));
    case ImageFault::kTokenBudget: return Internal(fmt::format("{}: image resize did not converge", place));
    default:
      return InvalidArgument(
          fmt::format("{}: You have uploaded an unsupported image. Please make sure your image is valid and has one of the "
                      "following formats: webp, png, jpeg, and gif.",
                      place));
  }
}

}  // namespace deepinfer::vision
