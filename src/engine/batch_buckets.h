// SPDX-License-Identifier: Apache-2.0
//
// The batch sizes that are prepared: graphs are captured for them, and the cost of a step is measured at them
// (specification, engine 13 and 12.4).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::engine {

// Ascending: powers of two below the interval, its multiples below `most`, and `most`. Both are at least 1.
std::vector<int64_t> BatchBuckets(int64_t most, int64_t interval);

// The smallest bucket that holds `num_rows`; 0 = none does.
int64_t BucketFor(std::span<const int64_t> buckets, int64_t num_rows);

}  // namespace deepinfer::engine
