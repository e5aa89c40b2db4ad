// SPDX-License-Identifier: Apache-2.0
#include "protocols/uri.h"

#include <cctype>
#include <vector>

namespace deepinfer::protocols {

namespace {

// Length of "scheme:", 0 if there is none.
size_t SchemeLength(std::string_view uri) {
  if (uri.empty() || !std::isalpha(static_cast<unsigned char>(uri[0]))) return 0;
  for (size_t i = 1; i < uri.size(); ++i) {
    const auto c = static_cast<unsigned char>(uri[i]);
    if (c == ':') return i + 1;
    if (!std::isalnum(c) && c != '+' && c != '-' && c != '.') return 0;
  }
  return 0;
}

std::string RemoveDotSegments(std::string_view path) {
  std::vector<std::string_view> segments;
  bool ends_in_directory = false;
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view segment = path.substr(begin, end - begin);
    ends_in_directory = segment == "." || segment == "..";
    if (segment == "..") {
      if (segments.size() > 1) segments.pop_back();
    } else if (segment != ".") {
      segments.push_back(segment);
    }
    begin = end + 1;
  }
  std::string out;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (i > 0) out += '/';
    out += segments[i];
  }
  if (ends_in_directory) out += '/';
  return out;
}

}  // namespace

bool HasScheme(std::string_view uri) { return SchemeLength(uri) > 0; }

std::string WithoutFragment(std::string_view uri) { return std::string(uri.substr(0, uri.find('#'))); }

std::string ResolveUri(std::string_view base, std::string_view reference) {
  if (HasScheme(reference) || base.empty()) return std::string(reference);
  const std::string plain_base = WithoutFragment(base);
  if (reference.empty()) return plain_base;
  if (reference.front() == '#') return plain_base + std::string(reference);
  const std::string_view b = plain_base;
  const size_t scheme = SchemeLength(b);
  if (reference.substr(0, 2) == "//") return std::string(b.substr(0, scheme)) + std::string(reference);
  size_t path_begin = scheme;
  if (b.substr(scheme, 2) == "//") path_begin = std::min(b.find('/', scheme + 2), b.size());
  const std::string_view prefix = b.substr(0, path_begin);
  const std::string_view base_path = b.substr(path_begin, b.find('?', path_begin) - path_begin);
  const size_t tail_begin = std::min(reference.find_first_of("?#"), reference.size());
  const std::string_view path = reference.substr(0, tail_begin);
  const std::string_view tail = reference.substr(tail_begin);
  std::string joined;
  if (path.empty()) {
    joined = base_path;
  } else if (path.front() == '/') {
    joined = RemoveDotSegments(path);
  } else {
    const size_t slash = base_path.rfind('/');
    std::string merged(slash == std::string_view::npos ? std::string_view(prefix.empty() ? "" : "/")
                                                       : base_path.substr(0, slash + 1));
    merged += path;
    joined = RemoveDotSegments(merged);
  }
  return std::string(prefix) + joined + std::string(tail);
}

}  // namespace deepinfer::protocols
