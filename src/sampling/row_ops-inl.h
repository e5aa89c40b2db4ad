// SPDX-License-Identifier: Apache-2.0
//
// The loops of row_ops.h, included once per instruction set with DI_SAMPLING_ISA set. Plain loops that the compiler
// vectorises; nothing from other headers is instantiated here, so no code for one instruction set leaks into another.

#include "sampling/elementary-inl.h"
#include "sampling/row_ops.h"

namespace deepinfer::sampling::DI_SAMPLING_ISA {

static constexpr float kMinusInfinity = -__builtin_inff();
static constexpr float kInfinity = __builtin_inff();

// Float bits as a signed integer with the order of the values; its own inverse.
static inline int32_t OrderedKey(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

static int32_t MaxKey(const float* __restrict x, int64_t n) {
  int32_t best = INT32_MIN;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t key = OrderedKey(x[i]);
    best = key > best ? key : best;
  }
  return best;
}

static int64_t FindEqual(const float* __restrict x, int64_t n, float value) {
  constexpr int64_t kStep = 256;
  for (int64_t base = 0; base < n; base += kStep) {
    const int64_t end = base + kStep < n ? base + kStep : n;
    int32_t any = 0;
    for (int64_t i = base; i < end; ++i) any |= x[i] == value ? 1 : 0;
    if (any == 0) continue;
    for (int64_t i = base; i < end; ++i) {
      if (x[i] == value) return i;
    }
  }
  return -1;
}

static int64_t CollectAtLeast(const float* __restrict x, int64_t n, float limit, int32_t* __restrict ids) {
  constexpr int64_t kStep = 64;
  int64_t count = 0;
  for (int64_t base = 0; base < n; base += kStep) {
    const int64_t end = base + kStep < n ? base + kStep : n;
    int32_t any = 0;
    for (int64_t i = base; i < end; ++i) any |= x[i] >= limit ? 1 : 0;
    if (any == 0) continue;
    for (int64_t i = base; i < end; ++i) {
      ids[count] = static_cast<int32_t>(i);
      count += x[i] >= limit ? 1 : 0;
    }
  }
  return count;
}

static void ApplyMask(float* __restrict x, int64_t n, const uint32_t* __restrict mask) {
  for (int64_t base = 0; base < n; base += 32) {
    const uint32_t word = mask[base >> 5];
    if (word == 0xffffffffu) continue;
    const int64_t count = n - base < 32 ? n - base : 32;
    float* __restrict part = x + base;
    if (word == 0) {
      // Most words of a grammar's mask.
      for (int64_t i = 0; i < count; ++i) part[i] = kMinusInfinity;
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      const bool is_kept = ((word >> i) & 1u) != 0;
      part[i] = is_kept ? part[i] : kMinusInfinity;
    }
  }
}

static float SumTree(float* lanes, int num_lanes) {
  for (int half = num_lanes / 2; half >= 1; half /= 2) {
    for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

// Calls body(i, count) for each run of num_lanes elements; lane k of the run is element i + k.
template <typename Body>
static inline void ForRuns(int64_t n, int num_lanes, Body body) {
  for (int64_t i = 0; i < n; i += num_lanes) body(i, n - i < num_lanes ? static_cast<int>(n - i) : num_lanes);
}

static void ZeroLanes(float* lanes, int num_lanes) {
  for (int k = 0; k < num_lanes; ++k) lanes[k] = 0.0f;
}

static float SumExp(const float* x, int64_t n, float max, float inv_t, float* lanes, int num_lanes) {
  ZeroLanes(lanes, num_lanes);
  ForRuns(n, num_lanes, [&](int64_t i, int count) {
    const float* __restrict row = x + i;
    float* __restrict sums = lanes;
    for (int k = 0; k < count; ++k) sums[k] += Exp((row[k] - max) * inv_t);
  });
  return SumTree(lanes, num_lanes);
}

static void LogProbs(const float* __restrict x,
                     int64_t n,
                     float max,
                     float inv_t,
                     float log_sum,
                     float* __restrict logprobs,
                     float* __restrict probs) {
  for (int64_t i = 0; i < n; ++i) {
    const float l = (x[i] - max) * inv_t - log_sum;
    logprobs[i] = l;
    probs[i] = Exp(l);
  }
}

static float Keep(float* probs,
                  float* logprobs,
                  int64_t n,
                  float threshold,
                  int32_t tie_limit,
                  float min_p,
                  float* lanes,
                  int num_lanes) {
  ZeroLanes(lanes, num_lanes);
  ForRuns(n, num_lanes, [&](int64_t i, int count) {
    float* __restrict p = probs + i;
    float* __restrict l = logprobs + i;
    float* __restrict sums = lanes;
    const int32_t first = static_cast<int32_t>(i);
    for (int k = 0; k < count; ++k) {
      const bool is_tie_kept = (p[k] == threshold) & (first + k <= tie_limit);
      const bool is_kept = ((p[k] > threshold) | is_tie_kept) & (p[k] >= min_p);
      const float kept_p = is_kept ? p[k] : 0.0f;
      p[k] = kept_p;
      l[k] = is_kept ? l[k] : kMinusInfinity;
      sums[k] += kept_p;
    }
  });
  return SumTree(lanes, num_lanes);
}

static void Subtract(float* __restrict logprobs, int64_t n, float log_mass) {
  for (int64_t i = 0; i < n; ++i) logprobs[i] -= log_mass;
}

static void Weights(const float* __restrict logprobs, int64_t n, uint32_t* __restrict weights) {
  for (int64_t i = 0; i < n; ++i) weights[i] = FixedPoint(Exp(logprobs[i]));
}

static void WeightsFromProbs(const float* __restrict probs, int64_t n, uint32_t* __restrict weights) {
  for (int64_t i = 0; i < n; ++i) weights[i] = FixedPoint(probs[i]);
}

static void SumLanes(const uint32_t* weights, int64_t n, uint32_t* lanes, int num_lanes) {
  for (int k = 0; k < num_lanes; ++k) lanes[k] = 0;
  ForRuns(n, num_lanes, [&](int64_t i, int count) {
    const uint32_t* __restrict w = weights + i;
    uint32_t* __restrict sums = lanes;
    for (int k = 0; k < count; ++k) sums[k] += w[k];
  });
}

struct Words {
  uint32_t x, y, z, w;
};

// stream: key0, key1, sub_lo, sub_hi.
static inline Words PhiloxWords(uint32_t counter0, uint32_t key0, uint32_t key1, uint32_t sub_lo, uint32_t sub_hi) {
  uint32_t c0 = counter0;
  uint32_t c1 = 0;
  uint32_t c2 = sub_lo;
  uint32_t c3 = sub_hi;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c1 = static_cast<uint32_t>(product1);
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

static inline float RaceKey(uint32_t word, uint32_t weight) {
  const float e = Exponential(word);
  // The conversion of a 32-bit weight rounds once; e / w is an IEEE division.
  return weight == 0 ? kInfinity : e / static_cast<float>(weight);
}

static constexpr int kRaceBlocks = 64;

static void RaceKeys(const uint32_t* weights, int32_t first, int64_t n, const uint32_t* stream, float* keys) {
  const uint32_t key0 = stream[0];
  const uint32_t key1 = stream[1];
  const uint32_t sub_lo = stream[2];
  const uint32_t sub_hi = stream[3];
  uint32_t words[4 * kRaceBlocks];
  for (int64_t base = 0; base < n; base += 4 * kRaceBlocks) {
    const uint32_t counter = static_cast<uint32_t>((first + base) >> 2);
    uint32_t x[kRaceBlocks];
    uint32_t y[kRaceBlocks];
    uint32_t z[kRaceBlocks];
    uint32_t w[kRaceBlocks];
    for (int b = 0; b < kRaceBlocks; ++b) {
      const Words block = PhiloxWords(counter + static_cast<uint32_t>(b), key0, key1, sub_lo, sub_hi);
      x[b] = block.x;
      y[b] = block.y;
      z[b] = block.z;
      w[b] = block.w;
    }
    for (int b = 0; b < kRaceBlocks; ++b) {
      words[4 * b] = x[b];
      words[4 * b + 1] = y[b];
      words[4 * b + 2] = z[b];
      words[4 * b + 3] = w[b];
    }
    const int count = n - base < 4 * kRaceBlocks ? static_cast<int>(n - base) : 4 * kRaceBlocks;
    const uint32_t* __restrict weight = weights + base;
    float* __restrict out = keys + base;
    for (int i = 0; i < count; ++i) out[i] = RaceKey(words[i], weight[i]);
  }
}

static void RaceKeysOf(const uint32_t* __restrict weights,
                       const int32_t* __restrict ids,
                       int64_t n,
                       const uint32_t* __restrict stream,
                       float* __restrict keys) {
  const uint32_t key0 = stream[0];
  const uint32_t key1 = stream[1];
  const uint32_t sub_lo = stream[2];
  const uint32_t sub_hi = stream[3];
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t id = static_cast<uint32_t>(ids[i]);
    const Words block = PhiloxWords(id >> 2, key0, key1, sub_lo, sub_hi);
    const uint32_t low = (id & 1u) != 0 ? block.y : block.x;
    const uint32_t high = (id & 1u) != 0 ? block.w : block.z;
    keys[i] = RaceKey((id & 2u) != 0 ? high : low, weights[i]);
  }
}

static float SumSmaller(const float* logprobs, int64_t n, float chosen, int32_t chosen_id, float* lanes, int num_lanes) {
  ZeroLanes(lanes, num_lanes);
  ForRuns(n, num_lanes, [&](int64_t i, int count) {
    const float* __restrict l = logprobs + i;
    float* __restrict sums = lanes;
    const int32_t first = static_cast<int32_t>(i);
    for (int k = 0; k < count; ++k) {
      const bool is_counted = (l[k] < chosen) | ((l[k] == chosen) & (first + k <= chosen_id));
      const float p = Exp(l[k]);
      sums[k] += is_counted ? p : 0.0f;
    }
  });
  return SumTree(lanes, num_lanes);
}

static float Residual(const float* p,
                      const float* q,
                      int64_t n,
                      float* out,
                      uint32_t* weights,
                      float* lanes,
                      int num_lanes) {
  ZeroLanes(lanes, num_lanes);
  ForRuns(n, num_lanes, [&](int64_t i, int count) {
    const float* __restrict target = p + i;
    const float* __restrict draft = q + i;
    float* __restrict r = out + i;
    uint32_t* __restrict w = weights + i;
    float* __restrict sums = lanes;
    for (int k = 0; k < count; ++k) {
      const float difference = Exp(target[k]) - Exp(draft[k] - 5e-5f);
      const float positive = difference > 0.0f ? difference : 0.0f;
      r[k] = positive;
      w[k] = FixedPoint(positive);
      sums[k] += positive;
    }
  });
  return SumTree(lanes, num_lanes);
}

static float ExpOne(float x) { return Exp(x); }
static float LogOne(float x) {
  const bool is_small = x < 0x1p-126f;
  return is_small ? LogNormal(x * 0x1p24f) - 0x1.0a2b24p+4f : LogNormal(x);
}
static float ExponentialOne(uint32_t word) { return Exponential(word); }

static constexpr RowOps MakeRowOps(const char* name) {
  return {name,    MaxKey,           FindEqual, CollectAtLeast, ApplyMask,  SumExp,     LogProbs, Keep,   Subtract,
          Weights, WeightsFromProbs, SumLanes,  RaceKeys,       RaceKeysOf, SumSmaller, Residual, ExpOne, LogOne,
          ExponentialOne};
}

}  // namespace deepinfer::sampling::DI_SAMPLING_ISA
