// SPDX-License-Identifier: Apache-2.0
//
// The constants of the Engram n-gram hash (checkpoint.md 5.1 and 5.2 of the specification): prime
// bucket counts, row offsets and hash multipliers. Everything is derived from the configuration; no
// checkpoint stores them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::model {

// Deterministic for every n below 2^32 (Miller-Rabin with bases 2, 7, 61).
bool IsPrime(uint32_t n);

// Primes of `num_tables` tables with `num_columns` columns each ((max order - 1) * heads), in table
// order. The search walks upwards from `vocab_size` and never uses a prime twice, over all tables.
// An empty result: the primes leave 32 bits.
std::vector<std::vector<int64_t>> EngramPrimes(int num_tables, int num_columns, int64_t vocab_size);

// Exclusive prefix sums of one table's primes: the first row of each column's bucket range.
std::vector<int64_t> EngramOffsets(std::span<const int64_t> primes);

// Multipliers m_0 (current token) .. m_{count-1} of one Engram layer: numpy's default_rng(10007 *
// layer_id) drawing below bound = max(1, (2^63-1) / compressed_vocab_size / 2), then 2v + 1. Bit
// for bit, SeedSequence and PCG64 included.
std::vector<int64_t> EngramMultipliers(int64_t layer_id, int count, int64_t compressed_vocab_size);

}  // namespace deepinfer::model
