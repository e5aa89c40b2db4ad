// SPDX-License-Identifier: Apache-2.0
//
// Philox4x32-10, the counter-based generator behind every random decision. A (seed, position, case) triple names a stream;
// nothing is stored between calls, so the draws of a request do not depend on what runs beside it. Source: Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Held by tests/sampling/philox_test.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace deepinfer::sampling {

// What a random number is for; part of the stream's name.
enum class DrawCase : int32_t {
  kTarget = 0,    // draw from the target or the draft distribution
  kResidual = 1,  // draw from the residual after a rejection
  kAccept = 2,    // the acceptance uniform
};

// Added to a request's seed for the draft model's own draws (rejection mode).
inline constexpr uint64_t kDraftSeedOffset = 1000000007;
// Distance of the positions of two verification rows (rejection mode).
inline constexpr int32_t kRowPositionStride = 10000019;

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock Philox(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// The words of one stream in order: x, y, z, w of counter word 0 = 0, then of 1, and so on.
class PhiloxStream {
 public:
  PhiloxStream(uint64_t seed, int32_t position, DrawCase draw_case)
      : key0_(static_cast<uint32_t>(seed)), key1_(static_cast<uint32_t>(seed >> 32)) {
    // The 32-bit product wraps as in two's complement, then the sign is extended to 64 bits.
    const uint32_t sub32 = 3u * static_cast<uint32_t>(position) + static_cast<uint32_t>(draw_case);
    const uint64_t sub = static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(sub32)));
    sub_lo_ = static_cast<uint32_t>(sub);
    sub_hi_ = static_cast<uint32_t>(sub >> 32);
  }

  PhiloxBlock Block(uint32_t counter0) const { return Philox({counter0, 0, sub_lo_, sub_hi_}, key0_, key1_); }

  uint32_t Next() {
    if (used_ == 4) {
      block_ = Block(counter0_++);
      used_ = 0;
    }
    return block_[static_cast<size_t>(used_++)];
  }

  uint32_t key0() const { return key0_; }
  uint32_t key1() const { return key1_; }
  uint32_t sub_lo() const { return sub_lo_; }
  uint32_t sub_hi() const { return sub_hi_; }

 private:
  uint32_t key0_;
  uint32_t key1_;
  uint32_t sub_lo_ = 0;
  uint32_t sub_hi_ = 0;
  PhiloxBlock block_{};
  uint32_t counter0_ = 0;
  int used_ = 4;
};

// (0, 1]: the word rounded to float32, times 2^-32, plus 2^-33.
inline float UniformFromWord(uint32_t word) { return static_cast<float>(word) * 0x1p-32f + 0x1p-33f; }

}  // namespace deepinfer::sampling
