// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic of one row: the bodies of the element-wise and reducing ops, compiled once per instruction set from
// row_ops-inl.h and reached through this table. Reductions use a fixed structure of 16 lanes and no fused multiply-add, so
// every instruction set gives the same bits; RowOpsTest compares them. `round_bf16` and `quantize` are model storage points.
#pragma once

#include <cstdint>

#include "core/cpu_features.h"
#include "device/types.h"

namespace deepinfer::cpu {

struct RowOps {
  // out = round(w * (x * rsqrt(mean(x^2) + eps)))
  void (*rms_norm)(const float* x, const float* w, int64_t n, float eps, bool round_bf16, float* out);
  // FP8 fake quantisation per 32 (ue8m0 scale), FP4 per 32 (ue8m0 scale), FP4 per 16 (e4m3 scale). out may equal x.
  void (*fake_fp8)(const float* x, int64_t n, float* out);
  void (*fake_fp4_pow2)(const float* x, int64_t n, float* out);
  void (*fake_fp4_e4m3)(const float* x, int64_t n, float* out);
  void (*round_bf16)(const float* x, int64_t n, float* out);
  void (*scale)(float* x, int64_t n, float factor, bool round_bf16);
  // out[c] = round(sum_j pre[j] * trunk[j*n + c])
  void (*collapse)(const float* trunk, const float* pre, int streams, int64_t n, bool round_bf16, float* out);
  // trunk[k*n + c] = round(post[k]*y[c] + sum_j comb[j*M + k] * trunk[j*n + c]); streams <= 8
  void (*expand)(const float* y, const float* post, const float* comb, int streams, int64_t n, bool round_bf16, float* trunk);
  void (*stream_mean)(const float* trunk, int streams, int64_t n, bool round_bf16, float* out);
  float (*sum_squares)(const float* x, int64_t n);
  float (*dot)(const float* x, const float* y, int64_t n);
  // sum x*w*y
  float (*dot3)(const float* x, const float* w, const float* y, int64_t n);
  // out[o] = dot(x, fn + o*n), o < num_outputs
  void (*dots)(const float* x, const float* fn, int64_t n, int num_outputs, float* out);
  // In place on `rows` matrices [streams, streams]: columns normalised, then iters - 1 times rows and columns (model.md 4.1);
  // every sum gets eps.
  void (*sinkhorn)(float* matrices, int64_t rows, int streams, int iters, float eps);
  // x += gate * value, rounded
  void (*add_scaled)(const float* value, float gate, int64_t n, bool round_bf16, float* x);
  void (*add)(const float* x, int64_t n, float* sum);
  // Pairs (0,1), (2,3), ... of n channels by cos[i], sin[i]; inverse turns back.
  void (*rotate)(float* x, int64_t n, const float* cos, const float* sin, bool inverse, bool round_bf16);
  // act = round(weight * silu(min(gate, limit)) * clamp(up, -limit, limit)); limit <= 0: none
  void (*swiglu)(const float* gate, const float* up, int64_t n, float limit, float weight, bool round_bf16, float* out);
  // Bytes <-> values that are exactly representable in the format; encode_key to kFp4E4m3 takes them before rounding.
  // `scale` points at the record's scale bytes.
  void (*decode_key)(device::KeyFormat format, const uint8_t* data, const uint8_t* scale, int64_t n, float* out);
  void (*encode_key)(device::KeyFormat format, const float* x, int64_t n, uint8_t* data, uint8_t* scale);
  // n bf16 values at any address.
  void (*decode_bf16)(const uint8_t* x, int64_t n, float* out);
};

// The table of an instruction set that the machine supports.
const RowOps& RowOpsFor(CpuIsa isa);

}  // namespace deepinfer::cpu
