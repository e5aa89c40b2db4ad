// SPDX-License-Identifier: Apache-2.0
#include "sampling/philox.h"

#include <array>

#include <gtest/gtest.h>

namespace deepinfer::sampling {
namespace {

constexpr uint64_t kSeed = 0x123456789abcdef0;

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, 0, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

struct StreamVector {
  int32_t position;
  int32_t draw_case;
  uint32_t words[6];
  float uniform;
};

TEST(Philox, StreamVectors) {
  const StreamVector vectors[] = {
      {0, 0, {0x092c9b44, 0x78384bc0, 0xc9fb80be, 0x2b3be4dd, 0x389d999a, 0x609cf517}, 0.0358368903f},
      {1, 0, {0x7c3fc739, 0xa3e7e272, 0x7b5e8a32, 0xc0b07bf4, 0x8cd2ee43, 0x844a623b}, 0.485348165f},
      {1, 1, {0xeeaa9154, 0x75c82dd8, 0x5e5a0cfe, 0x11fe450e, 0x2fd0601a, 0xcea5af49}, 0.932290137f},
      {1, 2, {0xaead3422, 0x70bbc61f, 0xc86a83d9, 0x27d55add, 0x72f03c2c, 0xfa2f013f}, 0.68233037f},
      {17, 0, {0xb465f409, 0xcb81b2ea, 0x8c5bb3a4, 0xcad75699, 0xe55a27f8, 0x3697c542}, 0.704680681f},
      {17, 2, {0xb1f73764, 0x43b1fa82, 0x8720a75a, 0x670fd8ec, 0x5828bbd2, 0x3cf5149d}, 0.695178449f},
      {10000020, 0, {0xa26f7bc9, 0xd3612b93, 0xc1ed3fee, 0x5983204a, 0xc001e384, 0xb38898ec}, 0.634513617f},
  };
  for (const StreamVector& v : vectors) {
    PhiloxStream stream(kSeed, v.position, static_cast<DrawCase>(v.draw_case));
    EXPECT_EQ(UniformFromWord(PhiloxStream(stream).Next()), v.uniform) << v.position;
    for (const uint32_t word : v.words) EXPECT_EQ(stream.Next(), word) << v.position << " case " << v.draw_case;
  }
}

// Written from the paper's definition, with 64-bit products and another loop.
std::array<uint32_t, 4> ReferencePhilox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key, int num_rounds) {
  for (int round = 0; round < num_rounds; ++round) {
    const uint64_t even = uint64_t{counter[0]} * 0xD2511F53u, odd = uint64_t{counter[2]} * 0xCD9E8D57u;
    counter = {static_cast<uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(odd),
               static_cast<uint32_t>(even >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(even)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// T6 of engine.md 23.
TEST(Philox, EqualsAnIndependentImplementation) {
  EXPECT_EQ(ReferencePhilox4x32({0, 0, 0, 0}, {0, 0}, 10), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  for (int32_t position = 0; position < 10; ++position) {
    for (int32_t draw_case = 0; draw_case < 3; ++draw_case) {
      PhiloxStream stream(kSeed, position, static_cast<DrawCase>(draw_case));
      const auto sub = static_cast<uint32_t>(3 * position + draw_case);
      for (uint32_t block = 0; block < 3; ++block) {
        const auto want = ReferencePhilox4x32({block, 0, sub, 0}, {static_cast<uint32_t>(kSeed), static_cast<uint32_t>(kSeed >> 32)}, 10);
        for (const uint32_t word : want) EXPECT_EQ(stream.Next(), word) << position << " case " << draw_case << " block " << block;
      }
    }
  }
}

TEST(Philox, PositionsWrapAsSigned32BitNumbers) {
  // 3 * 0x40000000 = -0x40000000 in 32 bits, sign-extended to 64.
  const PhiloxStream stream(0, 0x40000000, DrawCase::kTarget);
  EXPECT_EQ(stream.sub_lo(), 0xc0000000u);
  EXPECT_EQ(stream.sub_hi(), 0xffffffffu);
}

TEST(Philox, UniformIsNeverZeroAndNeverAboveOne) {
  EXPECT_GT(UniformFromWord(0), 0.0f);
  EXPECT_EQ(UniformFromWord(0xffffffffu), 1.0f);
}

}  // namespace
}  // namespace deepinfer::sampling
