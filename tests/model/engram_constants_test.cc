// SPDX-License-Identifier: Apache-2.0
#include "model/engram_constants.h"

#include <numeric>

#include <gtest/gtest.h>

#include "golden_file.h"

namespace deepinfer::model {
namespace {

using testing::GoldenFile;

TEST(EngramConstants, PrimesOfTheReleasedModel) {
  const auto primes = EngramPrimes(2, 24, 16000000);
  EXPECT_EQ(primes[0].front(), 16000057);
  EXPECT_EQ(primes[0].back(), 16000463);
  EXPECT_EQ(primes[1].front(), 16000477);
  EXPECT_EQ(primes[1].back(), 16000889);
  EXPECT_EQ(std::accumulate(primes[0].begin(), primes[0].end(), int64_t{0}), 384006168);
  EXPECT_EQ(std::accumulate(primes[1].begin(), primes[1].end(), int64_t{0}), 384016682);
  EXPECT_EQ(EngramOffsets(primes[0])[23], 368005705);
  EXPECT_EQ(EngramOffsets(primes[1])[23], 368015793);
}

TEST(EngramConstants, MatchTheGoldenFile) {
  const GoldenFile golden("model/engram.safetensors");
  const auto flat = [](const std::vector<std::vector<int64_t>>& tables) {
    std::vector<int64_t> all;
    for (const auto& t : tables) all.insert(all.end(), t.begin(), t.end());
    return all;
  };
  EXPECT_EQ(flat(EngramPrimes(2, 24, 16000000)), golden.Ints("release.primes"));
  EXPECT_EQ(flat({EngramMultipliers(1, 4, 99092), EngramMultipliers(14, 4, 99092)}),
            golden.Ints("release.multipliers"));
  EXPECT_EQ(flat(EngramPrimes(2, 6, 101)), golden.Ints("primes"));
  EXPECT_EQ(flat({EngramMultipliers(0, 4, 417), EngramMultipliers(3, 4, 417)}),
            golden.Ints("multipliers"));
}

TEST(EngramConstants, MultiplierCheckValues) {
  EXPECT_EQ(EngramMultipliers(1, 4, 99092),
            (std::vector<int64_t>{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(EngramMultipliers(14, 4, 99092),
            (std::vector<int64_t>{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
  EXPECT_EQ(EngramMultipliers(0, 4, 417),
            (std::vector<int64_t>{
                14088572219157163, 5967249955982315, 906268716845319, 365564823427249}));
  EXPECT_EQ(EngramMultipliers(3, 4, 417),
            (std::vector<int64_t>{
                6541254461940911, 19404742284054957, 2584930354031559, 16704711646019409}));
}

TEST(EngramConstants, IsPrimeAgreesWithTrialDivision) {
  const auto by_trial = [](uint32_t n) {
    if (n < 2) return false;
    for (uint32_t d = 2; uint64_t{d} * d <= n; ++d) {
      if (n % d == 0) return false;
    }
    return true;
  };
  for (uint32_t n = 0; n < 20000; ++n) EXPECT_EQ(IsPrime(n), by_trial(n)) << n;
  // Strong pseudoprimes to base 2, and the largest prime below 2^32.
  for (const uint32_t n : {2047u, 3277u, 1373653u, 3215031751u, 4294967295u})
    EXPECT_FALSE(IsPrime(n)) << n;
  EXPECT_TRUE(IsPrime(4294967291u));
}

TEST(EngramConstants, PrimesThatLeave32BitsGiveNothing) {
  EXPECT_TRUE(EngramPrimes(1, 8, 4294967292).empty());
  EXPECT_FALSE(EngramPrimes(1, 1, 4294967291).empty());
}

}  // namespace
}  // namespace deepinfer::model
