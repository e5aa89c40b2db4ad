// SPDX-License-Identifier: Apache-2.0
//
// Seconds of a call, for paired measurements (core/measure.h).
#pragma once

#include <chrono>

#include "core/measure.h"

namespace deepinfer::bench {

template <typename F>
double SecondsOf(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace deepinfer::bench
