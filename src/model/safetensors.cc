// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "core/escape.h"
#include "model/json_scanner.h"

namespace deepinfer::model {

namespace {

constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxDimensions = 8;

// A header is {name: {field: scalar or flat list}}: nothing may nest deeper than the shape of an
// entry.
constexpr int kMaxFieldDepth = 1;
constexpr int kMaxMetadataDepth = 2;

int64_t ReadLittleEndian64(const uint8_t* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | bytes[i];
  // A length of 2^63 or more is as absurd as a negative one.
  return value > uint64_t{INT64_MAX} ? -1 : static_cast<int64_t>(value);
}

bool ReadIntList(JsonScanner& scanner, size_t max_size, std::vector<int64_t>* out) {
  out->clear();
  bool first = true;
  while (scanner.NextElement(first)) {
    int64_t value = 0;
    if (out->size() == max_size)
      return scanner.Fail(fmt::format("list of more than {} numbers", max_size));
    if (!scanner.ReadUint(value)) return false;
    out->push_back(value);
  }
  return scanner.ok();
}

struct HeaderEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> offsets;
};

bool ReadEntry(JsonScanner& scanner, HeaderEntry* entry) {
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
  bool first = true;
  std::string key;
  const auto once = [&](bool& seen) {
    if (seen) return scanner.Fail(fmt::format("the field \"{}\" appears twice", key));
    seen = true;
    return true;
  };
  while (scanner.NextKey(first, key)) {
    bool is_read = false;
    if (key == "dtype") {
      is_read = once(has_dtype) && scanner.ReadString(entry->dtype);
    } else if (key == "shape") {
      is_read = once(has_shape) && ReadIntList(scanner, kMaxDimensions, &entry->shape);
    } else if (key == "data_offsets") {
      is_read = once(has_offsets) && ReadIntList(scanner, 2, &entry->offsets);
    } else {
      is_read = scanner.SkipValue(kMaxFieldDepth);
    }
    if (!is_read) return false;
  }
  if (!scanner.ok()) return false;
  if (!has_dtype || !has_shape || !has_offsets)
    return scanner.Fail("an entry needs dtype, shape and data_offsets");
  if (entry->offsets.size() != 2) return scanner.Fail("data_offsets must hold two numbers");
  return true;
}

// Bytes of a tensor, or -1 when they do not fit int64.
int64_t TensorBytes(DType dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = DTypeBytes(dtype);
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return -1;
  }
  return bytes;
}

Status Damaged(const std::string& path, std::string_view problem) {
  return BadModel(fmt::format("{}: {}; the file is damaged, fetch it again", path, problem));
}

std::vector<uint32_t> SortedByName(const std::vector<TensorView>& tensors) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return tensors[a].name < tensors[b].name;
  });
  return order;
}

Status CheckOverlaps(const std::vector<TensorView>& tensors, const std::string& path) {
  std::vector<uint32_t> order;
  order.reserve(tensors.size());
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].num_bytes > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return tensors[a].data < tensors[b].data;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorView& a = tensors[order[i - 1]];
    const TensorView& b = tensors[order[i]];
    if (a.data + a.num_bytes > b.data) {
      return Damaged(path,
                     fmt::format("the data of {} and {} overlap", Escape(a.name), Escape(b.name)));
    }
  }
  return Status::Ok();
}

struct ParsedHeader {
  std::vector<TensorView> tensors;
  std::vector<uint32_t> by_name;
};

Result<ParsedHeader> ParseHeader(const uint8_t* bytes, int64_t num_bytes, const std::string& path) {
  if (num_bytes < 8)
    return Damaged(path, fmt::format("has {} bytes, too few for a safetensors header", num_bytes));
  const int64_t header_bytes = ReadLittleEndian64(bytes);
  const int64_t limit = std::min(kMaxHeaderBytes, num_bytes - 8);
  if (header_bytes <= 0 || header_bytes > limit) {
    return Damaged(
        path,
        fmt::format("the header length {} is not in [1, {}] (the file has {} bytes)",
                    header_bytes < 0 ? std::string("beyond 2^63") : std::to_string(header_bytes),
                    limit,
                    num_bytes));
  }
  const uint8_t* data = bytes + 8 + header_bytes;
  const int64_t data_bytes = num_bytes - 8 - header_bytes;
  JsonScanner scanner(std::string_view(reinterpret_cast<const char*>(bytes) + 8,
                                       static_cast<size_t>(header_bytes)));
  const auto header_error = [&] {
    return Damaged(path, fmt::format("safetensors header: {}", scanner.ErrorText()));
  };

  ParsedHeader parsed;
  HeaderEntry entry;
  std::string name;
  bool has_metadata = false;
  bool first = true;
  while (scanner.NextKey(first, name)) {
    if (name == "__metadata__") {
      if (has_metadata) return Damaged(path, "safetensors header: __metadata__ appears twice");
      has_metadata = true;
      if (!scanner.SkipValue(kMaxMetadataDepth)) return header_error();
      continue;
    }
    if (!ReadEntry(scanner, &entry)) {
      return Damaged(
          path,
          fmt::format("safetensors header, tensor {}: {}", Escape(name), scanner.ErrorText()));
    }
    const std::optional<DType> dtype = ParseDType(entry.dtype);
    if (!dtype) {
      return BadModel(
          fmt::format("{}: tensor {} has the dtype {}, which is not supported; re-export it in the "
                      "release format",
                      path,
                      Escape(name),
                      Escape(entry.dtype, 32)));
    }
    const int64_t begin = entry.offsets[0];
    const int64_t end = entry.offsets[1];
    if (begin > end || end > data_bytes) {
      return Damaged(path,
                     fmt::format("tensor {} lies at bytes [{}, {}] of {} bytes of data",
                                 Escape(name),
                                 begin,
                                 end,
                                 data_bytes));
    }
    const int64_t expected = TensorBytes(*dtype, entry.shape);
    if (end - begin != expected) {
      return Damaged(
          path,
          fmt::format("tensor {} ({} [{}]) needs {} bytes but has {}",
                      Escape(name),
                      entry.dtype,
                      fmt::join(entry.shape, ", "),
                      expected < 0 ? std::string("more than 2^63") : std::to_string(expected),
                      end - begin));
    }
    TensorView view;
    view.name = name;
    view.dtype = *dtype;
    view.shape = entry.shape;
    view.data = data + begin;
    view.num_bytes = end - begin;
    parsed.tensors.push_back(std::move(view));
  }
  if (!scanner.ExpectEnd()) return header_error();

  parsed.by_name = SortedByName(parsed.tensors);
  for (size_t i = 1; i < parsed.by_name.size(); ++i) {
    const std::string& tensor = parsed.tensors[parsed.by_name[i]].name;
    if (tensor == parsed.tensors[parsed.by_name[i - 1]].name) {
      return Damaged(path,
                     fmt::format("safetensors header: tensor {} appears twice", Escape(tensor)));
    }
  }
  DI_RETURN_IF_ERROR(CheckOverlaps(parsed.tensors, path));
  return parsed;
}

}  // namespace

int64_t TensorView::num_elements() const {
  int64_t count = 1;
  for (const int64_t d : shape) count *= d;
  return count;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile file;
  DI_ASSIGN_OR_RETURN(file.file_, MappedFile::Open(path));
  DI_ASSIGN_OR_RETURN(ParsedHeader parsed, ParseHeader(file.file_.data(), file.file_.size(), path));
  file.tensors_ = std::move(parsed.tensors);
  file.by_name_ = std::move(parsed.by_name);
  return file;
}

Result<std::vector<TensorView>> SafetensorsFile::ParseBytes(const uint8_t* bytes,
                                                            int64_t num_bytes,
                                                            const std::string& path) {
  DI_ASSIGN_OR_RETURN(ParsedHeader parsed, ParseHeader(bytes, num_bytes, path));
  return std::move(parsed.tensors);
}

const TensorView* SafetensorsFile::Find(std::string_view name) const {
  const auto it = std::lower_bound(
      by_name_.begin(), by_name_.end(), name, [&](uint32_t i, std::string_view key) {
        return tensors_[i].name < key;
      });
  if (it == by_name_.end() || tensors_[*it].name != name) return nullptr;
  return &tensors_[*it];
}

}  // namespace deepinfer::model
