// SPDX-License-Identifier: Apache-2.0
//
// ByteRanges: which bytes of a file are there, as disjoint half-open ranges in ascending order.
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer::hub {

struct ByteRange {
  int64_t begin = 0, end = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

class ByteRanges {
 public:
  void Add(int64_t begin, int64_t end);
  // What is not there of [0, size), in pieces of at most `max_bytes`.
  std::vector<ByteRange> Missing(int64_t size, int64_t max_bytes) const;
  int64_t num_bytes() const;
  const std::vector<ByteRange>& ranges() const { return ranges_; }

 private:
  std::vector<ByteRange> ranges_;
};

}  // namespace deepinfer::hub
