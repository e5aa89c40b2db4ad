// SPDX-License-Identifier: Apache-2.0
//
// Integer arithmetic that sizes need.
#pragma once

#include <cstdint>

namespace deepinfer {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
// The next multiple of `unit`.
constexpr int64_t RoundUp(int64_t value, int64_t unit) { return CeilDiv(value, unit) * unit; }

}  // namespace deepinfer
