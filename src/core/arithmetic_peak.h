// SPDX-License-Identifier: Apache-2.0
//
// The rate of the widest multiply-add of the active instruction set from registers alone (AVX-512 and ARM with bf16:
// bf16 pairs, else float32): the yardstick of every arithmetic figure. Measurements interleave it with what they measure.
#pragma once

#include "core/threads.h"

namespace deepinfer {

// Floating point operations per second over all threads of the pool.
double ArithmeticPeak(ThreadPool& pool);
// The same of products of bytes summed as integers (AVX-512: VNNI, AVX2: pairs in 16 bits and an addition).
double IntegerPeak(ThreadPool& pool);

}  // namespace deepinfer
