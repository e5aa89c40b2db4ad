// SPDX-License-Identifier: Apache-2.0
#include "model/engram_constants.h"

#include <algorithm>
#include <array>

namespace deepinfer::model {

namespace {

uint32_t PowMod(uint32_t base, uint32_t exponent, uint32_t n) {
  uint64_t result = 1;
  uint64_t b = base % n;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1u) result = result * b % n;
    b = b * b % n;
  }
  return static_cast<uint32_t>(result);
}

// numpy's SeedSequence(seed) with a pool of four words, giving the four 64-bit words that start a
// PCG64.
std::array<uint64_t, 4> SeedWords(uint64_t seed) {
  uint32_t c = 0x43b0d7e5u;
  const auto hash = [&c](uint32_t v) {
    v ^= c;
    c *= 0x931e8875u;
    v *= c;
    return v ^ (v >> 16);
  };
  const std::array<uint32_t, 4> words = {
      static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
  std::array<uint32_t, 4> pool{};
  for (size_t i = 0; i < 4; ++i) pool[i] = hash(words[i]);
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      if (i == j) continue;
      const uint32_t r = 0xca01f9ddu * pool[j] - 0x4973f715u * hash(pool[i]);
      pool[j] = r ^ (r >> 16);
    }
  }
  c = 0x8b51f9ddu;
  std::array<uint32_t, 8> w{};
  for (size_t i = 0; i < 8; ++i) {
    uint32_t d = pool[i % 4] ^ c;
    c *= 0x58f38dedu;
    d *= c;
    w[i] = d ^ (d >> 16);
  }
  std::array<uint64_t, 4> q{};
  for (size_t k = 0; k < 4; ++k) q[k] = uint64_t{w[2 * k]} | uint64_t{w[2 * k + 1]} << 32;
  return q;
}

__extension__ using uint128 = unsigned __int128;

class Pcg64 {
 public:
  explicit Pcg64(uint64_t seed) {
    const std::array<uint64_t, 4> q = SeedWords(seed);
    increment_ = (Join(q[2], q[3]) << 1) | 1u;
    Step();
    state_ += Join(q[0], q[1]);
    Step();
  }

  uint64_t Next() {
    Step();
    const uint64_t value = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const auto shift = static_cast<unsigned>(state_ >> 122);
    return (value >> shift) | (value << ((64 - shift) & 63u));
  }

  // Unbiased draw in [0, bound) by Lemire's method, the path numpy takes for bounds above 2^32.
  uint64_t Below(uint64_t bound) {
    const uint64_t reject_below = (0 - bound) % bound;
    uint128 m = uint128{Next()} * bound;
    while (static_cast<uint64_t>(m) < reject_below) m = uint128{Next()} * bound;
    return static_cast<uint64_t>(m >> 64);
  }

 private:
  static uint128 Join(uint64_t high, uint64_t low) { return uint128{high} << 64 | low; }
  void Step() { state_ = state_ * Join(0x2360ed051fc65da4u, 0x4385df649fccf645u) + increment_; }

  uint128 state_ = 0;
  uint128 increment_ = 0;
};

}  // namespace

bool IsPrime(uint32_t n) {
  if (n < 2) return false;
  for (const uint32_t p : {2u, 3u, 5u, 7u, 11u, 13u, 17u, 19u, 23u, 29u, 31u, 37u, 61u}) {
    if (n % p == 0) return n == p;
  }
  uint32_t odd = n - 1;
  int twos = 0;
  while ((odd & 1u) == 0) {
    odd >>= 1;
    ++twos;
  }
  for (const uint32_t base : {2u, 7u, 61u}) {
    uint64_t x = PowMod(base, odd, n);
    bool is_composite = x != 1 && x != n - 1;
    for (int i = 1; is_composite && i < twos; ++i) {
      x = x * x % n;
      if (x == n - 1) is_composite = false;
    }
    if (is_composite) return false;
  }
  return true;
}

std::vector<std::vector<int64_t>> EngramPrimes(int num_tables,
                                               int num_columns,
                                               int64_t vocab_size) {
  // The definition restarts at vocab_size - 1 for every order and skips primes already used. Those
  // are always a contiguous run of primes from the start, so going on from the last one gives the
  // same list.
  std::vector<std::vector<int64_t>> tables(static_cast<size_t>(std::max(num_tables, 0)));
  int64_t candidate = std::max<int64_t>(vocab_size, 2);
  for (std::vector<int64_t>& primes : tables) {
    primes.reserve(static_cast<size_t>(num_columns));
    while (static_cast<int>(primes.size()) < num_columns) {
      if (candidate > int64_t{0xffffffff}) return {};
      if (IsPrime(static_cast<uint32_t>(candidate))) primes.push_back(candidate);
      ++candidate;
    }
  }
  return tables;
}

std::vector<int64_t> EngramOffsets(std::span<const int64_t> primes) {
  std::vector<int64_t> offsets;
  offsets.reserve(primes.size());
  int64_t sum = 0;
  for (const int64_t prime : primes) {
    offsets.push_back(sum);
    sum += prime;
  }
  return offsets;
}

std::vector<int64_t> EngramMultipliers(int64_t layer_id, int count, int64_t compressed_vocab_size) {
  const uint64_t max_int64 = (uint64_t{1} << 63) - 1;
  const uint64_t bound = std::max<uint64_t>(
      1, max_int64 / static_cast<uint64_t>(std::max<int64_t>(compressed_vocab_size, 1)) / 2);
  Pcg64 rng(static_cast<uint64_t>(10007 * layer_id));
  std::vector<int64_t> multipliers;
  multipliers.reserve(static_cast<size_t>(std::max(count, 0)));
  for (int i = 0; i < count; ++i)
    multipliers.push_back(static_cast<int64_t>(2 * rng.Below(bound) + 1));
  return multipliers;
}

}  // namespace deepinfer::model
