// SPDX-License-Identifier: Apache-2.0
//
// data: URLs to the bytes of an image. The verdicts are those of the public service's resolver; the protocols check the shape of
// a URL before (protocols/image_source.h) and may refuse more.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "vision/image_fault.h"

namespace deepinfer::vision {

// `max_bytes` bounds the decoded bytes, before any of them is decoded.
ImageFault ReadDataUrl(std::string_view url, int64_t max_bytes, std::string& bytes);

}  // namespace deepinfer::vision
