// SPDX-License-Identifier: Apache-2.0
#include "engine/batch_buckets.h"

#include <algorithm>

namespace deepinfer::engine {

std::vector<int64_t> BatchBuckets(int64_t most, int64_t interval) {
  interval = std::min(interval, most);
  std::vector<int64_t> buckets;
  for (int64_t size = 1; size < interval; size *= 2) buckets.push_back(size);
  for (int64_t size = interval; size < most; size += interval) buckets.push_back(size);
  buckets.push_back(most);
  return buckets;
}

int64_t BucketFor(std::span<const int64_t> buckets, int64_t num_rows) {
  const auto it = std::lower_bound(buckets.begin(), buckets.end(), num_rows);
  return it == buckets.end() ? 0 : *it;
}

}  // namespace deepinfer::engine
