// SPDX-License-Identifier: Apache-2.0
//
// Harness of the CUDA kernel benchmarks: device arrays, random data, timing by graph replay over more data than the L2 cache
// holds, comparison with plain reference kernels, one JSON object a line. Wrong results make the program fail.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace deepinfer::bench {

#define DI_CUDA(call)                                                                                       \
  do {                                                                                                      \
    const cudaError_t cuda_error = (call);                                                                  \
    if (cuda_error != cudaSuccess) {                                                                        \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(cuda_error));   \
      std::exit(1);                                                                                         \
    }                                                                                                       \
  } while (0)

inline constexpr int64_t kRotateBytes = int64_t{256} << 20;  // four times the L2 cache

template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(int64_t count) : count_(count) {
    DI_CUDA(cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T)));
    DI_CUDA(cudaMemset(data_, 0, static_cast<size_t>(count) * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(static_cast<int64_t>(host.size())) {
    DI_CUDA(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(DeviceArray&& o) noexcept : data_(o.data_), count_(o.count_) { o.data_ = nullptr; }
  DeviceArray& operator=(DeviceArray&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(count_, o.count_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }
  T* data() const { return data_; }
  int64_t size() const { return count_; }
  std::vector<T> Host() const {
    std::vector<T> host(static_cast<size_t>(count_));
    DI_CUDA(cudaMemcpy(host.data(), data_, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
  // Bytes that no result looks like.
  void Poison() { DI_CUDA(cudaMemset(data_, 0xff, static_cast<size_t>(count_) * sizeof(T))); }

 private:
  T* data_ = nullptr;
  int64_t count_ = 0;
};

inline __device__ uint32_t Hash(uint64_t i, uint32_t seed) {
  uint64_t z = i * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull + 0x632BE59BD9B4E019ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return static_cast<uint32_t>((z ^ (z >> 31)) >> 16);
}

enum class Fill {
  kBytes,     // any bits (FP4 pairs)
  kFp8,       // e4m3 bytes that are numbers
  kScales,    // ue8m0 of 2^-9 .. 2^-6
  kScalesE4,  // e4m3 scales near 1
};
void FillBytes(uint8_t* to, int64_t n, Fill fill, uint32_t seed);
// Normal values with this deviation, times 4 for one in 32.
void FillNormal(float* to, int64_t n, float deviation, uint32_t seed);
void FillNormal(__nv_bfloat16* to, int64_t n, float deviation, uint32_t seed);

struct Timing {
  double median = 0, p10 = 0, p90 = 0;  // microseconds a launch
};
// launch(i) is captured for i in 0..nodes-1 into one graph; medians over replays.
Timing Time(int nodes, const std::function<void(int, cudaStream_t)>& launch, int replays = 15);

// ||a - b|| / ||b||; not finite when an element is not.
double RelativeError(const std::vector<float>& a, const std::vector<float>& b);
std::vector<float> ToFloats(const std::vector<__nv_bfloat16>& x);

// y[t][r] = sum_k x[t][k] W[r][k] in float64 from the checkpoint's bytes. fp4: data [rows, cols/2], scale [rows, cols/32];
// else e4m3 [rows, cols], scale [rows/32, cols/32]. x row t = x + x_rows[t] * ldx (null: t).
void ReferenceProduct(bool fp4, const uint8_t* data, const uint8_t* scale, int rows, int cols, const __nv_bfloat16* x,
                      int64_t ldx, const int32_t* x_rows, int tokens, float* y, int64_t ldy);

// One record; `bytes` and `flops` of one launch.
void Record(const std::string& bench, const std::string& shape, int m, const Timing& t, double bytes, double flops,
            const std::string& more = "");
// Notes a check; the program's exit status is 1 if one failed.
void Check(const std::string& what, double error, double limit);
bool AnyFailed();

void BenchExperts(bool quick);
void ProfileExperts();  // one call of some sizes, for a profiler
void BenchDense(bool quick);
void BenchAttention(bool quick);
void BenchIndexer(bool quick);
void BenchBlockScaled(bool quick);

}  // namespace deepinfer::bench
