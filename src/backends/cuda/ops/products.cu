// SPDX-License-Identifier: Apache-2.0
//
// General matrix products (a warp an output, up to eight rows at a time), norms, small row operations.
#include <algorithm>

#include "backends/cuda/ops/dot.cuh"
#include "backends/cuda/ops/start.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kWarps = 4;

int ThreadsFor(int64_t n) { return static_cast<int>(std::clamp<int64_t>((n + 31) / 32 * 32, 32, 1024)); }

template <device::WeightFormat kFormat, typename X, int kRows>
__global__ void __launch_bounds__(kWarps * 32) MatMulKernel(WeightView w, const X* x, int64_t x_stride, int64_t rows, int64_t rows_per_group,
                                                           int64_t group_cols, bool round, F y) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kWarps + (threadIdx.x >> 5);
  if (n < w.rows) PrefetchWeights<kFormat>(w.data + n * WeightRowBytes(kFormat, w.padded_cols), w.padded_cols);
  WaitForEarlier();
  if (n >= w.rows) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kRows;
  const uint8_t* row = w.data + n * WeightRowBytes(kFormat, w.padded_cols);
  const uint8_t* scale = w.scale != nullptr ? w.scale + (n >> w.scale_shift) * (w.padded_cols / 32) : nullptr;
  x += n / rows_per_group * group_cols + first * x_stride;
  const int lane = threadIdx.x & 31;
  float sums[kRows];
  if (kRows == 1 || first + kRows <= rows) {
    WarpDots<kFormat, X, kRows>(row, scale, w.padded_cols, x, x_stride, sums);
#pragma unroll
    for (int m = 0; m < kRows; ++m)
      if (lane == m) y.data[(first + m) * y.stride + n] = RoundIf(sums[m], round);
    return;
  }
  if constexpr (kRows > 1) {
    for (int64_t m = first; m < rows; ++m) {
      WarpDots<kFormat, X, 1>(row, scale, w.padded_cols, x, x_stride, sums);
      if (lane == 0) y.data[m * y.stride + n] = RoundIf(sums[0], round);
      x += x_stride;
    }
  }
}

template <device::WeightFormat kFormat, typename X>
void MatMulOf(cudaStream_t stream, const WeightView& w, const InputView& x, int64_t rows_per_group, int64_t group_cols, bool round, F y) {
  const auto* values = static_cast<const X*>(x.values);
  const auto blocks = static_cast<unsigned>((w.rows + kWarps - 1) / kWarps);
  const auto launch = [&]<int kRows>() {
    Start(MatMulKernel<kFormat, X, kRows>, dim3(blocks, static_cast<unsigned>((x.rows + kRows - 1) / kRows)), kWarps * 32, 0, stream, w, values, x.stride, x.rows, rows_per_group, group_cols, round, y);
  };
  if (x.rows == 1) {
    launch.template operator()<1>();
  } else if (x.rows <= 4) {
    launch.template operator()<2>();
  } else {
    launch.template operator()<8>();
  }
}

__global__ void QuantizeKernel(F x, int64_t cols, QuantizedOut out) {
  WaitForEarlier();
  const int64_t t = blockIdx.y, c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= out.stride) return;  // a multiple of 32: whole warps
  const float v = c < cols ? x.data[t * x.stride + c] : 0.0f;
  out.bf16[t * out.stride + c] = static_cast<uint16_t>(__float_as_uint(FakeFp8Lane(v)) >> 16);
}

__global__ void PadKernel(F x, int64_t cols, int64_t padded, float* out) {
  WaitForEarlier();
  const int64_t t = blockIdx.x;
  for (int64_t c = threadIdx.x; c < padded; c += blockDim.x) out[t * padded + c] = c < cols ? x.data[t * x.stride + c] : 0.0f;
}

__global__ void RmsNormKernel(bool round, F in, const float* norm, int64_t width, float eps, F out, QuantizedOut quantized) {
  WaitForEarlier();
  __shared__ float shared[33];
  const int64_t t = blockIdx.x;
  NormRow(in.data + t * in.stride, norm, width, eps, round, out.data + t * out.stride,
          quantized.bf16 != nullptr ? quantized.bf16 + t * quantized.stride : nullptr, shared, blockDim.x);
}

__global__ void ScaleKernel(bool round, F x, int64_t width, float factor) {
  WaitForEarlier();
  const int64_t t = blockIdx.x;
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) x.data[t * x.stride + c] = RoundIf(x.data[t * x.stride + c] * factor, round);
}

__global__ void AddFloatsKernel(const float* x, int64_t width, int64_t x_stride, float* sum, int64_t sum_stride) {
  WaitForEarlier();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < width) sum[blockIdx.y * sum_stride + i] += x[blockIdx.y * x_stride + i];
}

// The largest value, the lower index on ties. NaN is never larger.
__global__ void ArgMaxKernel(const float* x, int64_t width, int64_t stride, int32_t* ids, int64_t ids_stride) {
  WaitForEarlier();
  __shared__ float best_of[32];
  __shared__ int32_t at_of[32];
  const float* row = x + blockIdx.x * stride;
  float best = row[0];
  int32_t at = 0;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float v = row[i];
    if (v > best || (v == best && i < at)) best = v, at = static_cast<int32_t>(i);
  }
  const auto take = [&](float v, int32_t i) {
    if (v > best || (v == best && i < at)) best = v, at = i;
  };
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) take(__shfl_xor_sync(~0u, best, d), __shfl_xor_sync(~0u, at, d));
  if ((threadIdx.x & 31) == 0) best_of[threadIdx.x >> 5] = best, at_of[threadIdx.x >> 5] = at;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned w = 1; w < blockDim.x / 32; ++w) take(best_of[w], at_of[w]);
  ids[blockIdx.x * ids_stride] = at;
}

}  // namespace

void LaunchQuantize(cudaStream_t stream, F x, int64_t rows, int64_t cols, const QuantizedOut& out) {
  Start(QuantizeKernel, dim3(static_cast<unsigned>((out.stride + 255) / 256), static_cast<unsigned>(rows)), 256, 0, stream, x, cols, out);
}

void LaunchPad(cudaStream_t stream, F x, int64_t rows, int64_t cols, int64_t padded, float* out) {
  Start(PadKernel, static_cast<unsigned>(rows), ThreadsFor(padded), 0, stream, x, cols, padded, out);
}

void LaunchMatMul(cudaStream_t stream, const WeightView& w, const InputView& x, int num_groups, int64_t group_cols, bool round, F y) {
  const int64_t rows_per_group = w.rows / num_groups;
  const auto with_input = [&]<device::WeightFormat kFormat>() {
    if (x.is_bf16) {
      MatMulOf<kFormat, uint16_t>(stream, w, x, rows_per_group, group_cols, round, y);
    } else {
      MatMulOf<kFormat, float>(stream, w, x, rows_per_group, group_cols, round, y);
    }
  };
  using device::WeightFormat;
  switch (w.format) {
    case WeightFormat::kF32: with_input.template operator()<WeightFormat::kF32>(); break;
    case WeightFormat::kBf16: with_input.template operator()<WeightFormat::kBf16>(); break;
    case WeightFormat::kFp4Row32: with_input.template operator()<WeightFormat::kFp4Row32>(); break;
    default:
      if (x.quantize) {
        MatMulOf<WeightFormat::kFp8Block32, QuantizedFloat>(stream, w, x, rows_per_group, group_cols, round, y);
      } else {
        with_input.template operator()<WeightFormat::kFp8Block32>();
      }
  }
}

int NormThreads(int64_t width) { return width <= 64 ? 64 : 512; }

void LaunchRmsNorm(cudaStream_t stream, bool round, F in, const float* norm, int64_t rows, int64_t width, float eps, F out,
                   const QuantizedOut& quantized) {
  Start(RmsNormKernel, static_cast<unsigned>(rows), NormThreads(width), 0, stream, round, in, norm, width, eps, out, quantized);
}

void LaunchScale(cudaStream_t stream, bool round, F x, int64_t rows, int64_t width, float factor) {
  Start(ScaleKernel, static_cast<unsigned>(rows), ThreadsFor(width), 0, stream, round, x, width, factor);
}

void LaunchAddFloats(cudaStream_t stream, const float* x, int64_t rows, int64_t width, int64_t x_stride, float* sum, int64_t sum_stride) {
  Start(AddFloatsKernel, dim3(static_cast<unsigned>((width + 255) / 256), static_cast<unsigned>(rows)), 256, 0, stream, x, width, x_stride, sum, sum_stride);
}

void LaunchArgMax(cudaStream_t stream, const float* x, int64_t rows, int64_t width, int64_t stride, int32_t* ids, int64_t ids_stride) {
  Start(ArgMaxKernel, static_cast<unsigned>(rows), 1024, 0, stream, x, width, stride, ids, ids_stride);
}

}  // namespace deepinfer::cuda
