// SPDX-License-Identifier: Apache-2.0
//
// Products and expert layers of the CPU backend at chosen shapes with random weights that rotate over more memory than four
// times the last-level cache, and the references of a machine: read sweep and arithmetic peak. Shared by kernels_cpu and
// the comparison with other libraries (peers/).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backends/cpu/kernels/matmul.h"
#include "backends/cpu/kernels/moe.h"
#include "bench/paired.h"
#include "core/arithmetic_peak.h"
#include "core/cpu_features.h"
#include "core/threads.h"

namespace deepinfer::bench {

inline constexpr int64_t kWorkingSetBytes = int64_t{160} << 20;  // > 4 x 32 MiB of last-level cache
inline constexpr int64_t kPairBytes = int64_t{48} << 20;         // read by each side of a pair
inline constexpr int64_t kHidden = 5120;
inline constexpr int64_t kExpertWidth = 2304;

inline uint64_t NextRandom(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

inline void FillRandom(cpu::AlignedBuffer& buffer) {
  uint64_t state = 88172645463325252ull;
  auto* words = reinterpret_cast<uint64_t*>(buffer.data());
  for (int64_t i = 0; i < buffer.bytes() / 8; ++i) words[i] = NextRandom(state);
}

inline std::vector<float> Input(int64_t n) {
  uint64_t state = 1234567;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(static_cast<int>(NextRandom(state) % 256) - 128) / 64.0f;
  return x;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) inline uint64_t ReadAvx2(const uint8_t* p, int64_t bytes) {
  __m256i sums[4] = {};
  for (int64_t i = 0; i < bytes; i += 128) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 4096), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 4160), _MM_HINT_T0);
    for (int j = 0; j < 4; ++j) {
      sums[j] = _mm256_xor_si256(sums[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(p + i + j * 32)));
    }
  }
  const __m256i sum = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(sum, 0));
}
#endif

inline uint64_t ReadBytes(const uint8_t* p, int64_t bytes) {
#if defined(__x86_64__)
  if (CpuSupports(CpuIsa::kAvx2)) return ReadAvx2(p, bytes);
#endif
  uint64_t sum = 0;
  for (int64_t i = 0; i < bytes; i += 8) {
    uint64_t v;
    std::memcpy(&v, p + i, 8);
    sum ^= v;
  }
  return sum;
}

// The machine as one benchmark sees it: a pool, the memory of the sweep.
struct Bench {
  ThreadPool pool;
  cpu::AlignedBuffer sweep_memory;
  int64_t sweep_pos = 0;
  std::vector<uint64_t> sums;

  explicit Bench(int threads, bool with_sweep = true) : pool(threads), sums(kPairBytes / kTile) {
    if (!with_sweep) return;
    sweep_memory.Allocate(kWorkingSetBytes);
    FillRandom(sweep_memory);
  }

  // Bytes per second.
  double Sweep() {
    if (sweep_pos + kPairBytes + 8192 > sweep_memory.bytes()) sweep_pos = 0;
    const uint8_t* p = sweep_memory.data() + sweep_pos;
    sweep_pos += kPairBytes;
    const double seconds = SecondsOf([&] {
      pool.ParallelFor(kPairBytes / kTile, [&](int64_t tile, int) { sums[static_cast<size_t>(tile)] += ReadBytes(p + tile * kTile, kTile); });
    });
    return static_cast<double>(kPairBytes) / seconds;
  }

  // Operations per second over all threads.
  double Peak() { return ArithmeticPeak(pool); }

 private:
  static constexpr int64_t kTile = 256 * 1024;
};

struct Weights {
  cpu::AlignedBuffer data, scale;
  cpu::MatrixSource source;

  Weights(cpu::WeightFormat format, int64_t rows, int64_t cols) {
    using cpu::WeightFormat;
    const bool fp4 = format == WeightFormat::kFp4Row32;
    const int64_t elements = rows * cols;
    data.Allocate(fp4 ? elements / 2 : format == WeightFormat::kBf16 ? elements * 2 : elements);
    FillRandom(data);
    if (format == WeightFormat::kFp8Tile32) {
      for (int64_t i = 0; i < data.bytes(); ++i) data.data()[i] &= 0xb7;  // no NaN, ordinary magnitudes
    }
    if (format == WeightFormat::kBf16) {
      auto* bits = reinterpret_cast<uint16_t*>(data.data());
      for (int64_t i = 0; i < elements; ++i) bits[i] = static_cast<uint16_t>((bits[i] & 0x807f) | 0x3c00);
    }
    if (format != WeightFormat::kBf16) {
      scale.Allocate(fp4 ? rows * (cols / 32) : (rows + 31) / 32 * (cols / 32));
      std::memset(scale.data(), 120, static_cast<size_t>(scale.bytes()));
    }
    source = {format, rows, cols, data.data(), scale.bytes() > 0 ? scale.data() : nullptr};
  }
};

// y = x W for m rows; groups > 1: the grouped product of the attention output.
class MatMulShape {
 public:
  MatMulShape(Bench& bench, cpu::WeightFormat format, int64_t rows, int64_t cols, int64_t m, int64_t groups)
      : bench_(bench), rows_(rows), cols_(cols), m_(m), groups_(groups) {
    const Weights weights(format, rows / groups, cols);
    const std::vector<cpu::MatrixSource> sources(static_cast<size_t>(groups), weights.source);
    int64_t total = 0;
    do {
      matrices_.push_back(cpu::PackedMatrix::Pack(sources, &bench.pool));
      total += matrices_.back().bytes();
    } while (total < kWorkingSetBytes);
    x_ = Input(m * cols * groups);
    y_.resize(static_cast<size_t>(m * rows));
    form_ = format == cpu::WeightFormat::kBf16 || groups > 1 ? cpu::ActivationForm::kBf16 : cpu::ActivationForm::kFp8;
    // Enough products per repetition for a steady clock; with many inputs one is enough.
    products_ = m > 8 ? 1 : std::max<int64_t>(1, kPairBytes / matrices_[0].bytes());
    PrepareInput();
  }
  // A repetition is this many products, each of another matrix.
  int64_t products() const { return products_; }
  double bytes() const { return static_cast<double>(matrices_[0].bytes() * products_); }
  double flops() const { return 2.0 * static_cast<double>(rows_ * cols_ * m_ * products_); }

  void PrepareInput() { prepared_.Prepare(bench_.pool, x_.data(), m_, cols_ * groups_, cols_ * groups_, form_); }
  // with_input: the input is quantised anew for every product, as a library does that is handed floats.
  void Run(bool with_input = false) {
    for (int64_t i = 0; i < products_; ++i) {
      if (with_input) PrepareInput();
      const cpu::PackedMatrix& w = matrices_[next_++ % matrices_.size()];
      if (groups_ > 1) {
        cpu::GroupedMatMul(bench_.pool, prepared_, w, groups_, y_.data(), rows_, cpu::Rounding::kBf16);
      } else {
        cpu::MatMul(bench_.pool, prepared_, w, y_.data(), rows_, cpu::Rounding::kBf16);
      }
    }
  }

 private:
  Bench& bench_;
  int64_t rows_, cols_, m_, groups_, products_ = 1;
  cpu::ActivationForm form_ = cpu::ActivationForm::kFp8;
  std::vector<cpu::PackedMatrix> matrices_;
  std::vector<float> x_, y_;
  cpu::PreparedActivations prepared_;
  size_t next_ = 0;
};

// A whole expert layer of `num_experts`, 6 a token, of the released widths unless given; routing uniform or Zipf.
class MoeShape {
 public:
  static constexpr int kChosen = 6, kRoutings = 8;

  MoeShape(Bench& bench, int64_t m, int num_experts, bool zipf, bool with_shared, int64_t hidden = kHidden,
           int64_t width = kExpertWidth)
      : bench_(bench), m_(m), hidden_(hidden), width_(width), has_shared_(with_shared) {
    using cpu::WeightFormat;
    const Weights up(WeightFormat::kFp4Row32, width, hidden), down(WeightFormat::kFp4Row32, hidden, width);
    packed_.reserve(static_cast<size_t>(2 * num_experts + 2));
    for (int e = 0; e < num_experts; ++e) experts_.push_back(Pack(up, down));
    if (with_shared) {
      const Weights shared_up(WeightFormat::kFp8Tile32, width, hidden), shared_down(WeightFormat::kFp8Tile32, hidden, width);
      shared_ = Pack(shared_up, shared_down);
      bytes_ += static_cast<double>(shared_.gate_up->bytes() + shared_.down->bytes());
    }
    uint64_t random = 99;
    for (int r = 0; r < kRoutings; ++r) {
      std::vector<int32_t> chosen;
      std::vector<bool> touched(static_cast<size_t>(num_experts));
      for (int64_t t = 0; t < m; ++t) {
        std::vector<bool> used(static_cast<size_t>(num_experts));
        for (int i = 0; i < kChosen;) {
          const double u = static_cast<double>(NextRandom(random) % 100000) / 100000.0;
          const auto e = static_cast<int32_t>(zipf ? num_experts * u * u * u : num_experts * u);
          if (used[static_cast<size_t>(e)]) continue;
          used[static_cast<size_t>(e)] = touched[static_cast<size_t>(e)] = true;
          chosen.push_back(e);
          ++i;
        }
      }
      for (size_t e = 0; e < touched.size(); ++e) {
        if (touched[e]) bytes_ += static_cast<double>(experts_[e].gate_up->bytes() + experts_[e].down->bytes()) / kRoutings;
      }
      routings_.push_back(std::move(chosen));
    }
    x_ = Input(m * hidden);
    out_.resize(x_.size());
    weights_.assign(static_cast<size_t>(m * kChosen), 0.25f);
    args_.x = &prepared_;
    args_.experts = experts_;
    args_.shared = with_shared ? &shared_ : nullptr;
    args_.num_chosen = kChosen;
    args_.weights = weights_.data();
    args_.swiglu_limit = 10;
    args_.round_bf16 = true;
    args_.out = out_.data();
    args_.ldo = hidden;
  }
  MoeShape(const MoeShape&) = delete;
  MoeShape& operator=(const MoeShape&) = delete;

  double bytes() const { return bytes_; }  // of one run, the mean over the routings
  double flops() const { return 2.0 * static_cast<double>(m_ * (kChosen + (has_shared_ ? 1 : 0)) * 3 * hidden_ * width_); }
  const std::vector<int32_t>& routing(int i) const { return routings_[static_cast<size_t>(i % kRoutings)]; }

  void Run() {
    args_.chosen = routing(next_++ % kRoutings).data();
    prepared_.Prepare(bench_.pool, x_.data(), m_, hidden_, hidden_, cpu::ActivationForm::kFp8);
    moe_.Run(bench_.pool, args_);
  }

 private:
  cpu::ExpertWeights Pack(const Weights& up, const Weights& down) {
    const cpu::MatrixSource both[] = {up.source, up.source};
    packed_.push_back(cpu::PackedMatrix::Pack(both, &bench_.pool, true));
    packed_.push_back(cpu::PackedMatrix::Pack({&down.source, 1}, &bench_.pool));
    return {&packed_[packed_.size() - 2], &packed_[packed_.size() - 1]};
  }

  Bench& bench_;
  int64_t m_, hidden_, width_;
  bool has_shared_;
  double bytes_ = 0;
  int next_ = 0;
  std::vector<cpu::PackedMatrix> packed_;
  std::vector<cpu::ExpertWeights> experts_;
  cpu::ExpertWeights shared_;
  std::vector<std::vector<int32_t>> routings_;
  std::vector<float> x_, out_, weights_;
  cpu::PreparedActivations prepared_;
  cpu::MoeExperts moe_;
  cpu::MoeArgs args_;
};

}  // namespace deepinfer::bench
