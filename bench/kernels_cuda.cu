// SPDX-License-Identifier: Apache-2.0
//
//   kernels_cuda [experts] [dense] [attention] [indexer] [block-scaled] [--quick]
// On GPUs other than sm_90a only block-scaled (and indexer) has code.
#include "bench/kernels_cuda.h"

#include <cstring>

#include "backends/cuda/kernels/numbers.cuh"

namespace deepinfer::bench {
namespace {

bool any_failed = false;

__global__ void FillKernel(uint8_t* to, int64_t n, Fill fill, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t r = Hash(i, seed);
    uint8_t v = static_cast<uint8_t>(r);
    if (fill == Fill::kFp8 && (v & 0x7f) == 0x7f) v ^= 1;
    if (fill == Fill::kScales) v = static_cast<uint8_t>(118 + (r & 3));
    if (fill == Fill::kScalesE4) v = static_cast<uint8_t>(0x34 + (r & 7));
    to[i] = v;
  }
}

template <typename T>
__global__ void NormalKernel(T* to, int64_t n, float deviation, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    const float u = (Hash(2 * i, seed) + 1.0f) * 2.3283064e-10f, v = Hash(2 * i + 1, seed) * 2.3283064e-10f;
    float x = deviation * sqrtf(-2.0f * logf(fminf(u, 1.0f))) * cospif(2.0f * v);
    if ((Hash(i, seed + 7) & 31) == 0) x *= 4.0f;
    to[i] = static_cast<T>(x);
  }
}

__device__ double Weight(bool fp4, const uint8_t* data, const uint8_t* scale, int cols, int row, int k) {
  if (fp4) {
    constexpr float kValues[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const uint8_t c = data[int64_t{row} * (cols / 2) + k / 2] >> (4 * (k & 1)) & 15;
    return ldexp((c & 8 ? -1.0 : 1.0) * kValues[c & 7], scale[int64_t{row} * (cols / 32) + k / 32] - 127);
  }
  const float v = __half2float(__half(__nv_cvt_fp8_to_halfraw(data[int64_t{row} * cols + k], __NV_E4M3)));
  return ldexp(static_cast<double>(v), scale[int64_t{row / 32} * (cols / 32) + k / 32] - 127);
}

// A warp per output row; tokens in turn.
__global__ void ReferenceKernel(bool fp4, const uint8_t* data, const uint8_t* scale, int rows, int cols, const __nv_bfloat16* x,
                                int64_t ldx, const int32_t* x_rows, int tokens, float* y, int64_t ldy) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  for (int t = blockIdx.y; t < tokens; t += gridDim.y) {
    const __nv_bfloat16* from = x + (x_rows != nullptr ? x_rows[t] : t) * ldx;
    double sum = 0;
    for (int k = lane; k < cols; k += 32)
      sum += Weight(fp4, data, scale, cols, row, k) * static_cast<double>(__bfloat162float(from[k]));
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane == 0) y[t * ldy + row] = static_cast<float>(sum);
  }
}

}  // namespace

void FillBytes(uint8_t* to, int64_t n, Fill fill, uint32_t seed) {
  FillKernel<<<1024, 256>>>(to, n, fill, seed);
  DI_CUDA(cudaGetLastError());
}
void FillNormal(float* to, int64_t n, float deviation, uint32_t seed) {
  NormalKernel<<<1024, 256>>>(to, n, deviation, seed);
  DI_CUDA(cudaGetLastError());
}
void FillNormal(__nv_bfloat16* to, int64_t n, float deviation, uint32_t seed) {
  NormalKernel<<<1024, 256>>>(to, n, deviation, seed);
  DI_CUDA(cudaGetLastError());
}

Timing Time(int nodes, const std::function<void(int, cudaStream_t)>& launch, int replays) {
  cudaStream_t stream;
  DI_CUDA(cudaDeviceSynchronize());
  DI_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  launch(0, stream);  // shared-memory opt-in happens outside of the capture
  DI_CUDA(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  DI_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < nodes; ++i) launch(i, stream);
  DI_CUDA(cudaStreamEndCapture(stream, &graph));
  DI_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  DI_CUDA(cudaEventCreate(&begin));
  DI_CUDA(cudaEventCreate(&end));
  std::vector<double> us;
  for (int r = 0; r < replays + 3; ++r) {
    DI_CUDA(cudaEventRecord(begin, stream));
    DI_CUDA(cudaGraphLaunch(exec, stream));
    DI_CUDA(cudaEventRecord(end, stream));
    DI_CUDA(cudaStreamSynchronize(stream));
    float ms = 0;
    DI_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (r >= 3) us.push_back(1000.0 * ms / nodes);
  }
  DI_CUDA(cudaGraphExecDestroy(exec));
  DI_CUDA(cudaGraphDestroy(graph));
  DI_CUDA(cudaStreamDestroy(stream));
  DI_CUDA(cudaEventDestroy(begin));
  DI_CUDA(cudaEventDestroy(end));
  std::sort(us.begin(), us.end());
  const auto at = [&](double q) { return us[static_cast<size_t>(q * static_cast<double>(us.size() - 1))]; };
  return {at(0.5), at(0.1), at(0.9)};
}

double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

std::vector<float> ToFloats(const std::vector<__nv_bfloat16>& x) {
  std::vector<float> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = __bfloat162float(x[i]);
  return out;
}

void ReferenceProduct(bool fp4, const uint8_t* data, const uint8_t* scale, int rows, int cols, const __nv_bfloat16* x,
                      int64_t ldx, const int32_t* x_rows, int tokens, float* y, int64_t ldy) {
  ReferenceKernel<<<dim3((rows + 7) / 8, std::min(tokens, 16)), 256>>>(fp4, data, scale, rows, cols, x, ldx, x_rows, tokens, y, ldy);
  DI_CUDA(cudaGetLastError());
}

namespace {

// {"name":"H200","sm":"90a"}
std::string DeviceJson() {
  int device = 0;
  cudaDeviceProp properties;
  DI_CUDA(cudaGetDevice(&device));
  DI_CUDA(cudaGetDeviceProperties(&properties, device));
  std::string name = properties.name;
  if (name.rfind("NVIDIA ", 0) == 0) name = name.substr(7);
  return "{\"name\":\"" + name + "\",\"sm\":\"" + std::to_string(properties.major * 10 + properties.minor) + "a\"}";
}

}  // namespace

void Record(const std::string& bench, const std::string& shape, int m, const Timing& t, double bytes, double flops,
            const std::string& more) {
  static const std::string device = DeviceJson();
  std::printf(
      "{\"bench\":\"%s\",\"backend\":\"cuda\",\"device\":%s,\"shape\":\"%s\",\"batch\":%d,"
      "\"median\":%.2f,\"p10\":%.2f,\"p90\":%.2f,\"unit\":\"us\",\"bytes\":%.0f,\"flops\":%.0f,\"GB/s\":%.0f,\"TFLOP/s\":%.1f,"
      "\"share_of_4.3TB/s\":%.3f%s%s}\n",
      bench.c_str(), device.c_str(), shape.c_str(), m, t.median, t.p10, t.p90, bytes, flops, bytes / t.median / 1e3, flops / t.median / 1e6,
      bytes / t.median / 1e3 / 4300, more.empty() ? "" : ",", more.c_str());
  std::fflush(stdout);
}

void Check(const std::string& what, double error, double limit) {
  const bool is_ok = error <= limit;  // false for NaN
  any_failed |= !is_ok;
  std::printf("{\"check\":\"%s\",\"error\":%.3g,\"limit\":%.3g,\"ok\":%s}\n", what.c_str(), error, limit, is_ok ? "true" : "false");
  std::fflush(stdout);
}
bool AnyFailed() { return any_failed; }

}  // namespace deepinfer::bench

int main(int argc, char** argv) {
  bool quick = false;
  std::vector<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else {
      wanted.emplace_back(argv[i]);
    }
  }
  const auto wants = [&](const char* name) {
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  if (wants("dense")) deepinfer::bench::BenchDense(quick);
  if (!wanted.empty() && wants("profile-experts")) deepinfer::bench::ProfileExperts();
  if (wants("experts")) deepinfer::bench::BenchExperts(quick);
  if (wants("attention")) deepinfer::bench::BenchAttention(quick);
#ifndef DI_NO_INDEXER
  if (wants("indexer")) deepinfer::bench::BenchIndexer(quick);
#endif
  if (wants("block-scaled")) deepinfer::bench::BenchBlockScaled(quick);
  return deepinfer::bench::AnyFailed() ? 1 : 0;
}
