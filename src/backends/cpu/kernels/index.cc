// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backends/cpu/kernels/index_kernels.h"
#include "core/check.h"
#include "core/cpu_features.h"
#include "core/dtypes.h"

namespace deepinfer::cpu {
namespace {

// 2 * e2m1.
constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float FoldHeads(const IndexScorer::View& q, const float* dots) {
  float lanes[8] = {};
  for (int h = 0; h < q.padded_heads; h += 8) {
    for (int i = 0; i < 8; ++i) lanes[i] += q.weights[h + i] * (dots[h + i] > 0.0f ? dots[h + i] : 0.0f);
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

void ScoreFp4Scalar(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, int num_keys, float* scores) {
  float dots[kMaxIndexHeads];
  for (int i = 0; i < num_keys; ++i) {
    const uint8_t* key = data + int64_t{i} * (q.dim / 2);
    const uint8_t* scale = scales + int64_t{i} * (q.dim / 32);
    std::fill_n(dots, q.padded_heads, 0.0f);
    for (int b = 0; b < q.dim / 32; ++b) {
      int8_t k[32];
      for (int d = 0; d < 16; ++d) {
        k[d] = kDoubled[key[b * 16 + d] & 15];
        k[16 + d] = kDoubled[key[b * 16 + d] >> 4];
      }
      const float key_scale = E8M0ToFloat(scale[b]);
      for (int h = 0; h < q.padded_heads; ++h) {
        int sum = 0;
        for (int d = 0; d < 32; ++d) sum += k[d] * q.codes[((b * 8 + d / 4) * q.padded_heads + h) * 4 + d % 4];
        dots[h] += static_cast<float>(sum) * (q.scale[b * q.padded_heads + h] * key_scale);
      }
    }
    scores[i] = FoldHeads(q, dots);
  }
}

void ScoreFloatScalar(const IndexScorer::View& q, const float* keys, int num_keys, float* scores) {
  float dots[kMaxIndexHeads];
  for (int i = 0; i < num_keys; ++i) {
    const float* key = keys + int64_t{i} * q.dim;
    std::fill_n(dots, q.padded_heads, 0.0f);
    for (int d = 0; d < q.dim; ++d) {
      for (int h = 0; h < q.padded_heads; ++h) dots[h] += q.values[d * q.padded_heads + h] * key[d];
    }
    scores[i] = FoldHeads(q, dots);
  }
}

// Order-preserving integer of a float; -0 counts as 0.
uint32_t OrderKey(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

}  // namespace

void IndexScorer::Prepare(const float* query, const float* weights, int heads, int dim, bool is_fp4) {
  DI_CHECK(heads > 0 && heads <= kMaxIndexHeads && dim > 0 && dim <= kMaxIndexDim) << heads << " x " << dim;
  DI_CHECK(!is_fp4 || dim % 32 == 0) << "index dim " << dim;
  // A vector of heads.
  const int lanes = ActiveCpuIsa() == CpuIsa::kAvx512 || ActiveCpuIsa() == CpuIsa::kAmx ? 16 : 8;
  const int padded_heads = (heads + lanes - 1) / lanes * lanes;
  const int blocks = (dim + 31) / 32;
  const int64_t weight_bytes = padded_heads * 4;
  const int64_t code_bytes = is_fp4 ? int64_t{dim} * padded_heads : 0;
  const int64_t block_bytes = is_fp4 ? int64_t{blocks} * padded_heads * 4 : 0;
  const int64_t value_bytes = is_fp4 ? 0 : int64_t{dim} * padded_heads * 4;
  buffer_.EnsureCapacity(weight_bytes + code_bytes + 2 * block_bytes + value_bytes);
  uint8_t* p = buffer_.data();
  auto* w = reinterpret_cast<float*>(p);
  auto* codes = reinterpret_cast<int8_t*>(p + weight_bytes);
  auto* offset = reinterpret_cast<int32_t*>(p + weight_bytes + code_bytes);
  auto* scale = reinterpret_cast<float*>(p + weight_bytes + code_bytes + block_bytes);
  auto* values = reinterpret_cast<float*>(p + weight_bytes + code_bytes + 2 * block_bytes);
  std::memset(p, 0, static_cast<size_t>(weight_bytes + code_bytes + 2 * block_bytes + value_bytes));
  view_ = {padded_heads, dim, w, codes, offset, scale, values};
  std::copy_n(weights, heads, w);
  for (int h = 0; h < heads; ++h) {
    const float* q = query + int64_t{h} * dim;
    if (!is_fp4) {
      for (int d = 0; d < dim; ++d) values[d * padded_heads + h] = q[d];
      continue;
    }
    for (int b = 0; b < blocks; ++b) {
      int32_t top = 0;  // magnitudes of floats order like their bits
      for (int d = 0; d < 32; ++d) top = std::max(top, std::bit_cast<int32_t>(q[b * 32 + d]) & 0x7fffffff);
      const float amax = std::bit_cast<float>(top);
      if (amax < std::numeric_limits<float>::min()) continue;  // a block of zeros
      // The smallest power of two that represents the block; the one it was rounded with may be twice as large, and then
      // its codes double exactly. The values lie on the e2m1 grid of that scale, so twice a value is a small integer.
      const int e = std::max(CeilLog2(amax * (1.0f / 6.0f)), -120);
      const float doubling = std::ldexp(2.0f, -e);
      int32_t wide[32];
      int8_t narrow[32];
      int sum = 0;
      for (int d = 0; d < 32; ++d) wide[d] = static_cast<int32_t>(q[b * 32 + d] * doubling);
      for (int d = 0; d < 32; ++d) narrow[d] = static_cast<int8_t>(wide[d]);
      for (int d = 0; d < 32; ++d) sum += narrow[d];
      for (int d = 0; d < 32; ++d) {
        const int at = d / 2 + (d & 1) * 16;  // even channels first
        codes[((b * 8 + at / 4) * padded_heads + h) * 4 + at % 4] = narrow[d];
      }
      offset[b * padded_heads + h] = -12 * sum;
      scale[b * padded_heads + h] = std::ldexp(0.25f, e);
    }
  }
}

void IndexScorer::ScoreFp4(const uint8_t* data, const uint8_t* scales, int num_keys, float* scores) const {
#if defined(__x86_64__)
  switch (ActiveCpuIsa()) {
    case CpuIsa::kAvx512:
    case CpuIsa::kAmx:
      return IndexScoreFp4Avx512(view_, data, scales, num_keys, scores);
    case CpuIsa::kAvx2:
      return IndexScoreFp4Avx2(view_, data, scales, num_keys, scores);
    default:
      break;
  }
#elif defined(__aarch64__)
  const CpuIsa isa = ActiveCpuIsa();
  if (isa == CpuIsa::kNeonBf16) return IndexScoreFp4NeonBf16(view_, data, scales, num_keys, scores);
  if (isa == CpuIsa::kNeon) return IndexScoreFp4Neon(view_, data, scales, num_keys, scores);
#endif
  ScoreFp4Scalar(view_, data, scales, num_keys, scores);
}

void IndexScorer::ScoreFloat(const float* keys, int num_keys, float* scores) const {
#if defined(__x86_64__)
  if (ActiveCpuIsa() >= CpuIsa::kAvx2) return IndexScoreFloatAvx2(view_, keys, num_keys, scores);
#elif defined(__aarch64__)
  if (ActiveCpuIsa() >= CpuIsa::kNeon) return IndexScoreFloatNeon(view_, keys, num_keys, scores);
#endif
  ScoreFloatScalar(view_, keys, num_keys, scores);
}

namespace {

// The whole selection by digits of the order-preserving keys.
int SelectByDigits(const float* scores, int n, int k, int32_t* out) {
  constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
  int finite = 0;
  for (int i = 0; i < n; ++i) finite += scores[i] > kMinusInf;
  if (finite <= k) {
    int count = 0;
    for (int i = 0; i < n; ++i) {
      if (scores[i] > kMinusInf) out[count++] = i;
    }
    return count;
  }
  if (k <= 0) return 0;
  // Digits of 11, 11 and 10 bits from the top: after each pass the digits so far of the k-th largest key are known.
  uint32_t prefix = 0, mask = 0;
  int needed = k;  // how many of the keys with this prefix are chosen
  constexpr int kShifts[3] = {21, 10, 0};
  constexpr uint32_t kDigits[3] = {2048, 2048, 1024};
  for (int pass = 0; pass < 3; ++pass) {
    int32_t histogram[2048] = {};
    const int shift = kShifts[pass];
    const uint32_t digit_mask = kDigits[pass] - 1;
    for (int i = 0; i < n; ++i) {
      const uint32_t key = OrderKey(scores[i]);
      if ((key & mask) == prefix) ++histogram[(key >> shift) & digit_mask];
    }
    uint32_t digit = digit_mask;
    while (histogram[digit] < needed) needed -= histogram[digit--];
    prefix |= digit << shift;
    mask |= digit_mask << shift;
    if (histogram[digit] == needed) break;  // every key with this prefix is chosen
  }
  int count = 0;
  for (int i = 0; i < n && count < k; ++i) {
    const uint32_t key = OrderKey(scores[i]);
    const uint32_t head = key & mask;
    if (head > prefix) {
      out[count++] = i;
    } else if (head == prefix && needed > 0) {
      out[count++] = i;
      --needed;
    }
  }
  return count;
}

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The k-th largest of x[0, n), k <= n.
float KthLargest(const float* x, int n, int k) {
  uint32_t prefix = 0, mask = 0;
  constexpr int kShifts[3] = {21, 10, 0};
  constexpr uint32_t kDigits[3] = {2048, 2048, 1024};
  for (int pass = 0; pass < 3; ++pass) {
    int32_t histogram[2048] = {};
    for (int i = 0; i < n; ++i) {
      const uint32_t key = OrderKey(x[i]);
      if ((key & mask) == prefix) ++histogram[(key >> kShifts[pass]) & (kDigits[pass] - 1)];
    }
    uint32_t digit = kDigits[pass] - 1;
    while (histogram[digit] < k) k -= histogram[digit--];
    prefix |= digit << kShifts[pass];
    mask |= (kDigits[pass] - 1) << kShifts[pass];
  }
  return std::bit_cast<float>(prefix & 0x80000000u ? prefix ^ 0x80000000u : ~prefix);
}

// Largest of n values, n a multiple of 16; independent lanes, so that the compiler uses vectors.
float MaxOf(const float* x, int n) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = x[i];
  for (int j = 16; j < n; j += 16) {
    for (int i = 0; i < 16; ++i) lanes[i] = x[j + i] > lanes[i] ? x[j + i] : lanes[i];
  }
  float best = lanes[0];
  for (int i = 1; i < 16; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

constexpr int kMaxPieces = 16384;
constexpr int kMaxShortList = 16384;

}  // namespace

int SelectTopK(const float* scores, int n, int k, int32_t* out) {
  int piece = 16;
  while (n / piece > kMaxPieces) piece *= 2;
  if (k <= 0 || n / piece < 2 * k) return SelectByDigits(scores, n, k, out);
  float maxima[kMaxPieces + 1];
  const int full = n / piece;
  for (int p = 0; p < full; ++p) maxima[p] = MaxOf(scores + int64_t{p} * piece, piece);
  // k pieces reach it, so at least k scores do.
  const float least = KthLargest(maxima, full, k);
  float listed[kMaxShortList];
  int32_t numbers[kMaxShortList];
  int count = 0;
  const auto look = [&](int begin, int end) {
    if (count + (end - begin) > kMaxShortList) return false;
    for (int i = begin; i < end; ++i) {
      listed[count] = scores[i];
      numbers[count] = i;
      count += scores[i] >= least && scores[i] > kMinusInfinity;
    }
    return true;
  };
  for (int p = 0; p < full; ++p) {
    if (maxima[p] < least || maxima[p] == kMinusInfinity) continue;
    if (!look(p * piece, (p + 1) * piece)) return SelectByDigits(scores, n, k, out);
  }
  if (!look(full * piece, n)) return SelectByDigits(scores, n, k, out);
  const int chosen = SelectByDigits(listed, count, k, out);
  for (int i = 0; i < chosen; ++i) out[i] = numbers[out[i]];
  return chosen;
}

void BlockMaxima(const float* scores, int n, int block_size, float* maxima) {
  const int blocks = (n + block_size - 1) / block_size;
  int first = 0;
#if defined(__x86_64__)
  if (block_size == 8 && ActiveCpuIsa() >= CpuIsa::kAvx2) {
    first = n / 8;
    BlockMaxima8Avx2(scores, first, maxima);
  }
#endif
  for (int b = first; b < blocks; ++b) {
    const int end = std::min(n, (b + 1) * block_size);
    float best = scores[b * block_size];
    for (int i = b * block_size + 1; i < end; ++i) best = std::max(best, scores[i]);
    maxima[b] = best;
  }
  if (blocks > 0) maxima[blocks - 1] = std::numeric_limits<float>::infinity();
}

}  // namespace deepinfer::cpu
