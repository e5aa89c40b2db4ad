// SPDX-License-Identifier: Apache-2.0
#include "protocols/image_source.h"

#include <cctype>

#include <fmt/format.h>

#include "protocols/json_text.h"

#include "core/ascii.h"

namespace deepinfer::protocols {

namespace {

enum class DataUrlFault { kNone, kNotDataUrl, kNoMarker, kMediaType, kBase64 };

bool HasPrefixIgnoringCase(std::string_view text, std::string_view lower_prefix) {
  return text.size() >= lower_prefix.size() && AsciiLower(text.substr(0, lower_prefix.size())) == lower_prefix;
}

bool IsSupportedMediaType(std::string_view type) {
  return type == "image/jpeg" || type == "image/jpg" || type == "image/png" || type == "image/gif" ||
         type == "image/webp";
}

// URLs are read without tabs and line ends, and without blanks and control characters at their end.
std::string CleanUrl(std::string_view url) {
  while (!url.empty() && static_cast<unsigned char>(url.back()) <= 0x20) url.remove_suffix(1);
  std::string clean;
  clean.reserve(url.size());
  for (const char c : url) {
    if (c != '\t' && c != '\r' && c != '\n') clean += c;
  }
  return clean;
}

bool IsHttpUrl(std::string_view url) {
  return HasPrefixIgnoringCase(url, "http://") || HasPrefixIgnoringCase(url, "https://");
}

DataUrlFault CheckDataUrl(std::string_view url) {
  const std::string clean = CleanUrl(url);
  std::string_view rest = clean;
  if (!HasPrefixIgnoringCase(rest, "data:")) return DataUrlFault::kNotDataUrl;
  rest.remove_prefix(5);
  const size_t comma = rest.find(',');
  if (comma == std::string_view::npos) return DataUrlFault::kNoMarker;
  const std::string_view head = rest.substr(0, comma);
  constexpr std::string_view kMarker = ";base64";
  if (head.size() < kMarker.size() || head.substr(head.size() - kMarker.size()) != kMarker) {
    return DataUrlFault::kNoMarker;
  }
  if (!IsSupportedMediaType(AsciiLower(head.substr(0, head.find(';'))))) return DataUrlFault::kMediaType;
  std::string_view body = rest.substr(comma + 1);
  body = body.substr(0, body.find('#'));
  return IsForgivingBase64(body) ? DataUrlFault::kNone : DataUrlFault::kBase64;
}

Status Fault(std::string_view path, std::string_view what) { return InvalidArgument(fmt::format("{}: {}", path, what)); }

bool IsBase64Char(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '/';
}

}  // namespace

bool IsForgivingBase64(std::string_view body) {
  size_t num_chars = 0;    // base64 characters, without padding
  size_t num_padding = 0;  // '=' seen; nothing but '=' may follow
  for (size_t i = 0; i < body.size(); ++i) {
    char c = body[i];
    if (c == '%' && i + 2 < body.size() && HexDigit(body[i + 1]) >= 0 && HexDigit(body[i + 2]) >= 0) {
      c = static_cast<char>(HexDigit(body[i + 1]) * 16 + HexDigit(body[i + 2]));
      i += 2;
    }
    if (c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\r') continue;
    if (c == '=') {
      ++num_padding;
    } else if (IsBase64Char(c) && num_padding == 0) {
      ++num_chars;
    } else {
      return false;
    }
  }
  if (num_chars % 4 == 1) return false;
  // Padding, if any, must fill the last group exactly.
  return num_padding == 0 || (num_padding <= 2 && (num_chars + num_padding) % 4 == 0);
}

bool IsStrictBase64(std::string_view data) {
  if (data.size() % 4 != 0) return false;
  size_t num_chars = data.size();
  while (num_chars > 0 && data.size() - num_chars < 2 && data[num_chars - 1] == '=') --num_chars;
  for (const char c : data.substr(0, num_chars)) {
    if (!IsBase64Char(c)) return false;
  }
  const size_t num_padding = data.size() - num_chars;
  if (num_padding == 0) return true;
  // The last character has 4 or 2 unused bits.
  constexpr std::string_view kFourUnused = "AQgw";
  constexpr std::string_view kTwoUnused = "AEIMQUYcgkosw048";
  return (num_padding == 2 ? kFourUnused : kTwoUnused).find(data[num_chars - 1]) != std::string_view::npos;
}

Result<text::ImageRef> CheckImageAddress(std::string_view url, std::string_view place, std::string_view path) {
  if (!IsHttpUrl(url)) return Fault(place, "invalid url: " + JsonString(url));
  text::ImageRef image;
  image.source = url;
  image.path = path;
  return image;
}

Result<text::ImageRef> CheckImageBase64(std::string_view media_type,
                                        std::string_view data,
                                        std::string_view place,
                                        std::string_view path) {
  if (!IsStrictBase64(data)) return Fault(place, "base64 decode error");
  text::ImageRef image;
  image.kind = text::ImageRef::Kind::kDataUrl;
  image.source = fmt::format("data:{};base64,{}", media_type == "image/jpg" ? "image/jpeg" : media_type, data);
  image.path = path;
  return image;
}

Result<text::ImageRef> CheckImageUrl(std::string_view url, std::string_view detail, std::string_view path) {
  text::ImageRef image;
  image.source = url;
  image.detail = detail;
  image.path = path;
  if (IsHttpUrl(url)) return image;
  image.kind = text::ImageRef::Kind::kDataUrl;
  switch (CheckDataUrl(url)) {
    case DataUrlFault::kNone: return image;
    case DataUrlFault::kNotDataUrl:
    case DataUrlFault::kNoMarker: return Fault(path, "Unsupported image_url format");
    case DataUrlFault::kMediaType:
      return Fault(path,
                   "You have uploaded an unsupported image. Please make sure your image is valid and has one of the "
                   "following formats: webp, png, jpeg, and gif.");
    case DataUrlFault::kBase64: break;
  }
  return Fault(path, "Invalid base64 data");
}

Result<text::ImageRef> CheckFileData(std::string_view file_data, std::string_view path) {
  text::ImageRef image;
  image.kind = text::ImageRef::Kind::kDataUrl;
  image.source = file_data;
  image.path = path;
  switch (CheckDataUrl(file_data)) {
    case DataUrlFault::kNone: return image;
    case DataUrlFault::kNoMarker: return Fault(path, "Unsupported image_url format");
    case DataUrlFault::kMediaType:
      return Fault(path,
                   "You have uploaded an unsupported file. Please make sure your file is valid and has one of the "
                   "following formats: webp, png, jpeg, and gif.");
    case DataUrlFault::kNotDataUrl:
    case DataUrlFault::kBase64: break;
  }
  return Fault(path, "file_data is not a valid base64 data url");
}

}  // namespace deepinfer::protocols
