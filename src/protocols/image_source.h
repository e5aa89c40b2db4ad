// SPDX-License-Identifier: Apache-2.0
//
// Checks of image sources at conversion (protocols.md 3.8): address schemes, media types and base64. Nothing is fetched or
// decoded here.
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"
#include "text/conversation.h"

namespace deepinfer::protocols {

// image_url of Chat Completions and Responses: http(s) address or data URL. `path` starts every error message.
Result<text::ImageRef> CheckImageUrl(std::string_view url, std::string_view detail, std::string_view path);

// file_data of Chat Completions: a base64 data URL only.
Result<text::ImageRef> CheckFileData(std::string_view file_data, std::string_view path);

// Sources of Messages, checked strictly: an http(s) address, or base64 data of a media type, which becomes a data URL. `place`
// starts every error message; `path` is that of the image.
Result<text::ImageRef> CheckImageAddress(std::string_view url, std::string_view place, std::string_view path);
Result<text::ImageRef> CheckImageBase64(std::string_view media_type,
                                        std::string_view data,
                                        std::string_view place,
                                        std::string_view path);

// Standard alphabet, whole groups with padding, unused bits zero, nothing else. Empty is fine.
bool IsStrictBase64(std::string_view data);

// WHATWG forgiving base64 over a data URL's body: percent-decoding, blanks ignored, padding optional.
bool IsForgivingBase64(std::string_view body);

}  // namespace deepinfer::protocols
