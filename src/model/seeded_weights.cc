// SPDX-License-Identifier: Apache-2.0
#include "model/seeded_weights.h"

#include <cmath>
#include <cstring>

#include "core/dtypes.h"

namespace deepinfer::model {

namespace {

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t StreamOf(std::string_view name, uint64_t seed) {
  uint64_t h = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return Mix(h ^ Mix(seed));
}

// Near enough to a standard normal: the sum of four uniforms.
float Normal(uint64_t stream, int64_t index) {
  const uint64_t r = Mix(stream + static_cast<uint64_t>(index));
  const uint64_t sum = (r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48);
  return (static_cast<float>(sum) / 65536.0f - 2.0f) * 1.7320508f;
}

// Values are mean + deviation * normal.
struct Distribution {
  float mean = 0;
  float deviation = 1;
};

Distribution DistributionOf(const RequiredTensor& t) {
  const float per_input = 1.0f / std::sqrt(static_cast<float>(t.fan_in));
  switch (t.role) {
    case TensorRole::kLinear:
      return {0, t.gain * per_input};
    case TensorRole::kMixFn:
      return {0, per_input};
    case TensorRole::kNorm:
      return {1.0f, 0.15f};
    case TensorRole::kSmall:
      return {0, 0.15f};
    case TensorRole::kSink:
      return {0.5f, 0.7f};
    case TensorRole::kMixScale:
      return {0.6f, 0.1f};
    case TensorRole::kMixBase:
      return {0, 0.5f};
    case TensorRole::kEmbed:
    case TensorRole::kTable:
      return {0, 1};
  }
  return {};
}

// Mixing bases are [pre (m), post (m), comb (m x m)]; the diagonal of comb is raised.
float MixBaseOffset(int64_t num_entries, int64_t index) {
  const auto m =
      static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(num_entries + 1)))) - 1;
  const int64_t entry = index - 2 * m;
  return entry >= 0 && entry % (m + 1) == 0 ? 1.5f : 0.0f;
}

// Random e4m3 codes 0x30..0x5f (magnitudes 0.5 to 30, root mean square 11) and packed FP4 nibbles
// (root mean square 2.9).
constexpr float kE4M3Rms = 11.2f;
constexpr float kE2M1Rms = 2.93f;

int ScaleExponent(const RequiredTensor& t) {
  const float deviation = DistributionOf(t).deviation;
  return 127 +
         static_cast<int>(std::lround(std::log2(deviation / (t.is_fp4 ? kE2M1Rms : kE4M3Rms))));
}

// Calls write(i, byte) with random byte i of the stream for `count` bytes from `begin`; one hash
// gives eight bytes.
template <typename Write>
void ForRandomBytes(uint64_t stream, int64_t begin, int64_t count, Write write) {
  uint64_t word = 0;
  for (int64_t i = begin; i < begin + count; ++i) {
    const int64_t lane = i % 8;
    if (lane == 0 || i == begin) word = Mix(stream + static_cast<uint64_t>(i / 8)) >> (lane * 8);
    write(i - begin, static_cast<uint8_t>(word));
    word >>= 8;
  }
}

template <typename T, typename Draw>
void Fill(int64_t begin, std::span<uint8_t> out, Draw draw) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const int64_t count = static_cast<int64_t>(out.size()) / kSize;
  for (int64_t i = 0; i < count; ++i) {
    const T value = draw(begin / kSize + i);
    std::memcpy(out.data() + i * kSize, &value, sizeof(T));
  }
}

}  // namespace

void FillSeeded(const RequiredTensor& t, uint64_t seed, int64_t begin, std::span<uint8_t> out) {
  const uint64_t stream = StreamOf(t.name, seed);
  const Distribution d = DistributionOf(t);
  switch (t.dtype) {
    case DType::kF32: {
      const bool is_mix_base = t.role == TensorRole::kMixBase;
      return Fill<float>(begin, out, [&](int64_t i) {
        return d.mean + d.deviation * Normal(stream, i) +
               (is_mix_base ? MixBaseOffset(t.dims[0], i) : 0.0f);
      });
    }
    case DType::kBf16:
      return Fill<uint16_t>(begin, out, [&](int64_t i) {
        return FloatToBf16(d.mean + d.deviation * Normal(stream, i));
      });
    case DType::kF8E8M0: {
      const int exponent = ScaleExponent(t);
      // One group in four is twice as large, one half as large.
      return Fill<uint8_t>(begin, out, [&](int64_t i) {
        const uint64_t r = Mix(stream + static_cast<uint64_t>(i)) & 3u;
        return static_cast<uint8_t>(exponent + (r == 0 ? 1 : r == 1 ? -1 : 0));
      });
    }
    case DType::kF8E4M3:
      return ForRandomBytes(
          stream, begin, static_cast<int64_t>(out.size()), [&](int64_t i, uint32_t r) {
            out[static_cast<size_t>(i)] =
                static_cast<uint8_t>(0x30u + ((r & 0x7fu) * 0x30u >> 7) + (r & 0x80u));
          });
    default:
      return ForRandomBytes(
          stream, begin, static_cast<int64_t>(out.size()), [&](int64_t i, uint8_t byte) {
            out[static_cast<size_t>(i)] = byte;
          });
  }
}

}  // namespace deepinfer::model
