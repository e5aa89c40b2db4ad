// SPDX-License-Identifier: Apache-2.0
#include "hub/byte_ranges.h"

#include <algorithm>

namespace deepinfer::hub {

void ByteRanges::Add(int64_t begin, int64_t end) {
  if (begin >= end) return;
  // The first one that touches the new range, and the first one behind it.
  const auto first = std::find_if(ranges_.begin(), ranges_.end(), [begin](const ByteRange& range) { return range.end >= begin; });
  auto last = first;
  for (; last != ranges_.end() && last->begin <= end; ++last) {
    begin = std::min(begin, last->begin);
    end = std::max(end, last->end);
  }
  ranges_.insert(ranges_.erase(first, last), {begin, end});
}

std::vector<ByteRange> ByteRanges::Missing(int64_t size, int64_t max_bytes) const {
  std::vector<ByteRange> missing;
  const auto add = [&](int64_t begin, int64_t end) {
    for (; begin < end; begin += max_bytes) missing.push_back({begin, std::min(begin + max_bytes, end)});
  };
  int64_t pos = 0;
  for (const ByteRange& range : ranges_) {
    add(pos, std::min(range.begin, size));
    pos = std::max(pos, range.end);
  }
  add(pos, size);
  return missing;
}

int64_t ByteRanges::num_bytes() const {
  int64_t sum = 0;
  for (const ByteRange& range : ranges_) sum += range.end - range.begin;
  return sum;
}

}  // namespace deepinfer::hub
