// SPDX-License-Identifier: Apache-2.0
#include "core/arithmetic_peak.h"

#include <chrono>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "core/cpu_features.h"

namespace deepinfer {
namespace {

// The compiler has to believe that the value is used.
void Keep(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

#if defined(__x86_64__)
// Each returns the floating point operations done.
__attribute__((target("avx2,fma"))) double PeakAvx2(int64_t rounds) {
  __m256 acc[12];
  for (auto& a : acc) a = _mm256_set1_ps(1.0f);
  const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& a : acc) a = _mm256_fmadd_ps(a, x, y);
  }
  __m256 sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = _mm256_add_ps(sum, acc[i]);
  Keep(&sum);
  return static_cast<double>(rounds) * 12 * 16;
}

__attribute__((target("avx2"))) double IntegerPeakAvx2(int64_t rounds) {
  __m256i acc[12] = {};
  const __m256i x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i) {
    // The product must not be lifted out of the loop.
    __m256i z = x;
    asm volatile("" : "+x"(z));
#pragma GCC unroll 12
    for (auto& a : acc) a = _mm256_add_epi16(a, _mm256_maddubs_epi16(_mm256_xor_si256(z, a), y));
  }
  Keep(acc);
  return static_cast<double>(rounds) * 12 * 64;
}

#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) double PeakAvx512(int64_t rounds) {
  __m512 acc[12];
  for (auto& a : acc) a = _mm512_set1_ps(1.0f);
  const __m512i bits = _mm512_set1_epi32(0x3c003c00);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& a : acc) a = _mm512_dpbf16_ps(a, (__m512bh)bits, (__m512bh)bits);
  }
  __m512 sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = _mm512_add_ps(sum, acc[i]);
  Keep(&sum);
  return static_cast<double>(rounds) * 12 * 64;
}
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) double IntegerPeakAvx512(int64_t rounds) {
  __m512i acc[12];
  for (auto& a : acc) a = _mm512_setzero_si512();
  const __m512i bytes = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& a : acc) a = _mm512_dpbusd_epi32(a, bytes, bytes);
  }
  __m512i sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = _mm512_add_epi32(sum, acc[i]);
  Keep(&sum);
  return static_cast<double>(rounds) * 12 * 128;
}
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

#if defined(__aarch64__)
double PeakNeon(int64_t rounds) {
  float32x4_t acc[16];
  for (auto& a : acc) a = vdupq_n_f32(1.0f);
  const float32x4_t x = vdupq_n_f32(0.001f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (auto& a : acc) a = vfmaq_f32(a, x, x);
  }
  for (int i = 1; i < 16; ++i) acc[0] = vaddq_f32(acc[0], acc[i]);
  Keep(&acc[0]);
  return static_cast<double>(rounds) * 16 * 8;
}

__attribute__((target("arch=armv8.2-a+bf16"))) double PeakNeonBf16(int64_t rounds) {
  float32x4_t acc[16];
  for (auto& a : acc) a = vdupq_n_f32(1.0f);
  const bfloat16x8_t x = vreinterpretq_bf16_u32(vdupq_n_u32(0x3c003c00));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (auto& a : acc) a = vbfdotq_f32(a, x, x);
  }
  for (int i = 1; i < 16; ++i) acc[0] = vaddq_f32(acc[0], acc[i]);
  Keep(&acc[0]);
  return static_cast<double>(rounds) * 16 * 16;
}
#endif

[[maybe_unused]] double PeakScalar(int64_t rounds) {
  float acc[16];
  for (float& a : acc) a = 1.0f;
  for (int64_t i = 0; i < rounds; ++i) {
    for (float& a : acc) a = a * 0.999f + 0.001f;
  }
  Keep(acc);
  return static_cast<double>(rounds) * 32;
}

double PeakWork(int64_t rounds) {
#if defined(__x86_64__)
  if (ActiveCpuIsa() >= CpuIsa::kAvx512) return PeakAvx512(rounds);
  if (CpuSupports(CpuIsa::kAvx2)) return PeakAvx2(rounds);
#elif defined(__aarch64__)
  return ActiveCpuIsa() == CpuIsa::kNeonBf16 ? PeakNeonBf16(rounds) : PeakNeon(rounds);
#endif
  return PeakScalar(rounds);
}

double IntegerWork(int64_t rounds) {
#if defined(__x86_64__)
  if (ActiveCpuIsa() >= CpuIsa::kAvx512) return IntegerPeakAvx512(rounds);
  if (CpuSupports(CpuIsa::kAvx2)) return IntegerPeakAvx2(rounds);
#endif
  return PeakScalar(rounds);
}

double Rate(ThreadPool& pool, double (*work_of)(int64_t)) {
  constexpr int64_t kTiles = 64, kRounds = 4000;
  std::vector<double> work(kTiles);
  const auto begin = std::chrono::steady_clock::now();
  pool.ParallelFor(kTiles, [&](int64_t tile, int) { work[static_cast<size_t>(tile)] = work_of(kRounds); });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  double sum = 0;
  for (const double w : work) sum += w;
  return sum / seconds.count();
}

}  // namespace

double ArithmeticPeak(ThreadPool& pool) { return Rate(pool, PeakWork); }
double IntegerPeak(ThreadPool& pool) { return Rate(pool, IntegerWork); }

}  // namespace deepinfer
