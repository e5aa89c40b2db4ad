// SPDX-License-Identifier: Apache-2.0
#include "vision/data_url.h"

#include "core/ascii.h"
#include "core/base64.h"

namespace deepinfer::vision {

namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f'; }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

bool IsImageType(std::string_view type) {
  return type == "image/jpeg" || type == "image/jpg" || type == "image/png" || type == "image/gif" || type == "image/webp";
}

// A broken %XX stays as it stands.
std::string PercentDecode(std::string_view text, bool drop_blanks) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 && HexDigit(text[i + 2]) >= 0) {
      c = static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2]));
      i += 2;
    }
    if (!drop_blanks || !IsBlank(c)) out += c;
  }
  return out;
}

// Padding is optional, but where there is some it must be right; unused bits must be zero.
bool DecodeBody(std::string text, std::string& bytes) {
  if (text.find('=') == std::string::npos) text.append((4 - text.size() % 4) % 4, '=');
  if (text.ends_with("===")) return false;
  auto decoded = DecodeBase64(text);
  if (!decoded.ok()) return false;
  bytes = std::move(decoded).value();
  const size_t whole = bytes.size() / 3 * 3;
  return text.ends_with(EncodeBase64(std::string_view(bytes).substr(whole)));
}

}  // namespace

ImageFault ReadDataUrl(std::string_view url, int64_t max_bytes, std::string& bytes) {
  bytes.clear();
  std::string_view rest = Trim(url);
  if (rest.size() < 5 || AsciiLower(rest.substr(0, 5)) != "data:") return ImageFault::kInvalidDataUrl;
  rest.remove_prefix(5);
  const size_t comma = rest.find(',');
  if (comma == std::string_view::npos) return ImageFault::kInvalidDataUrl;
  const std::string_view head = rest.substr(0, comma);
  std::string_view body = rest.substr(comma + 1);
  body = body.substr(0, body.find('#'));
  if (!IsImageType(AsciiLower(Trim(head.substr(0, head.find(';')))))) return ImageFault::kUnsupportedMediaType;
  const size_t last = head.rfind(';');
  const bool is_base64 = last != std::string_view::npos && AsciiLower(Trim(head.substr(last + 1))) == "base64";

  const auto limit = static_cast<size_t>(max_bytes);
  if (!is_base64) {
    bytes = PercentDecode(body, false);
  } else {
    std::string text = PercentDecode(body, true);
    if (text.size() / 4 > limit / 3 + 1) return ImageFault::kImageTooLarge;
    if (!DecodeBody(std::move(text), bytes)) return ImageFault::kInvalidDataUrl;
  }
  if (bytes.size() > limit) return ImageFault::kImageTooLarge;
  return bytes.empty() ? ImageFault::kEmptyImage : ImageFault::kNone;
}

}  // namespace deepinfer::vision
