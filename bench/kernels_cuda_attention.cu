// SPDX-License-Identifier: Apache-2.0
//
// Sparse attention: 64 heads over 128 window keys and 512 selected compressed keys.
#include "bench/kernels_cuda.h"

#include <random>

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/numbers.cuh"

namespace deepinfer::bench {
namespace {

using namespace deepinfer::cuda;

constexpr int kWindow = 128, kRing = 134, kTopk = 512, kRope = 64;
constexpr int kGroups = 4096;          // compressed entries of a sequence
constexpr int kPerBlock = 128;
constexpr int64_t kRecord = 288, kWindowRecord = 528;
constexpr int64_t kBlockBytes = kPerBlock * kRecord;

__global__ void FixScales(uint8_t* records, int64_t count, int64_t bytes, int64_t data, bool fp8) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count * (bytes - data); i += int64_t{gridDim.x} * blockDim.x) {
    uint8_t& s = records[i / (bytes - data) * bytes + data + i % (bytes - data)];
    s = fp8 ? 119 + (s & 3) : 0x2c + (s & 7);
  }
  if (!fp8) return;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count * data; i += int64_t{gridDim.x} * blockDim.x) {
    uint8_t& v = records[i / data * bytes + i % data];
    if ((v & 0x7f) > 0x58) v &= 0xdf;
  }
}

// One thread per head and channel pair of a row; float64.
__global__ void ReferenceKernel(SparseAttentionArgs a, int row, float* out) {
  extern __shared__ double shared[];
  const device::SequenceRows& s = a.sequences[a.row_sequence[row]];
  const int p = a.positions[row], head = blockIdx.x;
  const int first = max(0, p - kWindow + 1), window = p - first + 1;
  const int n = window + a.num_selected[row];
  const auto key = [&](int i, int c) -> double {
    constexpr float kValues[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    if (i < window) {
      const int q = first + i;
      if (q >= s.start) return __bfloat162float(a.new_keys[(s.row_begin + q - s.start) * a.ldk + c]);
      const uint8_t* r = s.state + a.ring.offset + int64_t{q % kRing} * kWindowRecord;
      return __half2float(__half(__nv_cvt_fp8_to_halfraw(r[c], __NV_E4M3))) * exp2(r[512 + c / 32] - 127.0);
    }
    const int g = a.selected[int64_t{row} * a.selected_stride + i - window];
    const uint8_t* r = a.compressed.pool + s.block_table[g / kPerBlock] * a.compressed.block_stride + a.compressed.main_offset +
                       int64_t{g % kPerBlock} * kRecord;
    const int code = r[c / 2] >> (4 * (c & 1)) & 15;
    return (code & 8 ? -1.0 : 1.0) * kValues[code & 7] * __half2float(__half(__nv_cvt_fp8_to_halfraw(r[256 + c / 16], __NV_E4M3)));
  };
  const __nv_bfloat16* q = a.query + row * a.ldq + head * 512;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    double z = 0;
    for (int c = 0; c < 512; ++c) z += key(i, c) * static_cast<double>(__bfloat162float(q[c]));
    shared[i] = z / sqrt(512.0);
  }
  __syncthreads();
  double top = -1e30, sum = 0;
  for (int i = 0; i < n; ++i) top = fmax(top, shared[i]);
  for (int i = 0; i < n; ++i) sum += exp(shared[i] - top);
  sum += exp(a.sink[head] - top);
  for (int c = threadIdx.x; c < 512; c += blockDim.x) {
    double o = 0;
    for (int i = 0; i < n; ++i) o += exp(shared[i] - top) * key(i, c);
    shared[n + c] = o / sum;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < 512; c += blockDim.x) {
    double v = shared[n + c];
    if (c >= 512 - kRope) {
      const int i = (c - (512 - kRope)) / 2;
      const double cs = a.rope[row * kRope + i], sn = -a.rope[row * kRope + kRope / 2 + i];
      v = c % 2 == 0 ? shared[n + c] * cs - shared[n + c + 1] * sn : shared[n + c - 1] * sn + shared[n + c] * cs;
    }
    out[head * 512 + c] = static_cast<float>(v);
  }
}

}  // namespace

void BenchAttention(bool quick) {
  constexpr int kMax = 256;
  const int64_t state_bytes = kRing * kWindowRecord;
  DeviceArray<uint8_t> pool(int64_t{kMax} * (kGroups / kPerBlock) * kBlockBytes), states(kMax * state_bytes);
  FillBytes(pool.data(), pool.size(), Fill::kBytes, 21);
  FixScales<<<1024, 256>>>(pool.data(), int64_t{kMax} * kGroups, kRecord, 256, false);
  FillBytes(states.data(), states.size(), Fill::kFp8, 22);
  FixScales<<<1024, 256>>>(states.data(), int64_t{kMax} * kRing, kWindowRecord, 512, true);
  std::mt19937 rng(3);
  std::vector<int32_t> tables, positions(kMax), row_sequence(kMax), num_selected(kMax, kTopk), selected;
  for (int i = 0; i < kMax * (kGroups / kPerBlock); ++i) tables.push_back(i);
  std::shuffle(tables.begin(), tables.end(), rng);
  DeviceArray<int32_t> table(tables);
  std::vector<device::SequenceRows> sequences(kMax);
  for (int b = 0; b < kMax; ++b) {
    // A few with short histories.
    const int p = b % 16 == 5 ? 40 : b % 16 == 6 ? 0 : kGroups - 1 - b;
    positions[static_cast<size_t>(b)] = p;
    row_sequence[static_cast<size_t>(b)] = b;
    sequences[static_cast<size_t>(b)] = {b, 1, p, 0, states.data() + b * state_bytes, table.data() + b * (kGroups / kPerBlock)};
    const int n = std::min(kTopk, p + 1);
    num_selected[static_cast<size_t>(b)] = n;
    std::vector<int32_t> all(static_cast<size_t>(p + 1));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    std::shuffle(all.begin(), all.end(), rng);
    all.resize(kTopk, 0);
    std::sort(all.begin(), all.begin() + n);
    selected.insert(selected.end(), all.begin(), all.end());
  }
  DeviceArray<device::SequenceRows> d_sequences(sequences);
  DeviceArray<int32_t> d_positions(positions), d_row_sequence(row_sequence), d_num(num_selected), d_selected(selected);
  constexpr int64_t kWidth = 64 * 512;
  DeviceArray<__nv_bfloat16> query(kMax * kWidth), keys(kMax * 512), out(kMax * kWidth);
  FillNormal(query.data(), query.size(), 1.5f, 31);
  DeviceArray<__nv_bfloat16> plain(kMax * 512);
  FillNormal(plain.data(), plain.size(), 0.7f, 32);
  DI_CUDA(LaunchQuantize(plain.data(), false, 512, kMax, 512, keys.data(), 512, nullptr));
  std::vector<float> sinks(64), rope(kMax * kRope);
  for (size_t i = 0; i < 64; ++i) sinks[i] = 0.05f * static_cast<float>(i) - 1;
  for (int b = 0; b < kMax; ++b) {
    for (int i = 0; i < kRope / 2; ++i) {
      const double angle = positions[static_cast<size_t>(b)] * std::pow(10000.0, -2.0 * i / kRope);
      rope[static_cast<size_t>(b * kRope + i)] = static_cast<float>(std::cos(angle));
      rope[static_cast<size_t>(b * kRope + kRope / 2 + i)] = static_cast<float>(std::sin(angle));
    }
  }
  DeviceArray<float> d_sinks(sinks), d_rope(rope);
  DeviceArray<uint8_t> workspace(AttentionWorkspaceBytes(kWindow + kTopk));
  SparseAttentionArgs args;
  args.sequences = d_sequences.data();
  args.positions = d_positions.data();
  args.row_sequence = d_row_sequence.data();
  args.ring = {0, kRing, kWindow, device::KeyFormat::kMxFp8};
  args.has_compressed = true;
  args.compressed.pool = pool.data();
  args.compressed.block_stride = kBlockBytes;
  args.compressed.entries_per_block = kPerBlock;
  args.compressed.head_dim = 512;
  args.compressed.main_format = device::KeyFormat::kFp4E4m3;
  args.selected = d_selected.data();
  args.num_selected = d_num.data();
  args.selected_stride = kTopk;
  args.max_keys = kWindow + kTopk;
  args.query = query.data();
  args.ldq = kWidth;
  args.new_keys = keys.data();
  args.ldk = 512;
  args.sink = d_sinks.data();
  args.rope = d_rope.data();
  args.rope_dim = kRope;
  args.out = out.data();
  args.ldo = kWidth;
  args.workspace = workspace.data();

  // Many rows against float64, then the same rows alone and in fours: other forms, the same bits.
  args.rows = kMax;
  out.Poison();
  DI_CUDA(LaunchSparseAttention(args, nullptr));
  const std::vector<float> all = ToFloats(out.Host());
  DeviceArray<float> reference(kWidth);
  double different = 0, worst = 0;
  for (const int b : {0, 5, 6, 7, 100, 255}) {
    ReferenceKernel<<<64, 256, (kWindow + kTopk + 512) * 8>>>(args, b, reference.data());
    DI_CUDA(cudaGetLastError());
    const std::vector<float> mine(all.begin() + b * kWidth, all.begin() + (b + 1) * kWidth);
    worst = std::max(worst, RelativeError(mine, reference.Host()));
    if (!std::isfinite(RelativeError(mine, reference.Host()))) worst = INFINITY;
    DeviceArray<__nv_bfloat16> one(kWidth);
    one.Poison();
    SparseAttentionArgs alone = args;
    alone.rows = 1;
    alone.positions = args.positions + b;
    alone.row_sequence = args.row_sequence + b;
    alone.selected = args.selected + b * kTopk;
    alone.num_selected = args.num_selected + b;
    alone.query = args.query + b * kWidth;
    // The sequence's first row is row 0 of the call.
    device::SequenceRows sequence = sequences[static_cast<size_t>(b)];
    sequence.row_begin = 0;
    DeviceArray<device::SequenceRows> own(std::vector<device::SequenceRows>(static_cast<size_t>(b) + 1, sequence));
    alone.sequences = own.data();
    alone.new_keys = args.new_keys + b * 512;
    alone.rope = args.rope + b * kRope;
    alone.out = one.data();
    DI_CUDA(LaunchSparseAttention(alone, nullptr));
    const std::vector<float> host = ToFloats(one.Host());
    for (size_t i = 0; i < host.size(); ++i) different += !(host[i] == mine[i]);
  }
  {
    DeviceArray<__nv_bfloat16> four(kMax * kWidth);
    four.Poison();
    SparseAttentionArgs few = args;
    few.rows = 4;
    few.out = four.data();
    for (int first = 0; first < 8; first += 4) {
      // Row numbers of the step begin at the first row.
      std::vector<device::SequenceRows> moved = sequences;
      for (auto& s : moved) s.row_begin -= first;
      DeviceArray<device::SequenceRows> own(moved);
      few.sequences = own.data();
      few.positions = args.positions + first;
      few.row_sequence = args.row_sequence + first;
      few.selected = args.selected + first * kTopk;
      few.num_selected = args.num_selected + first;
      few.query = args.query + first * kWidth;
      few.new_keys = args.new_keys + first * 512;
      few.rope = args.rope + first * kRope;
      few.out = four.data() + first * kWidth;
      DI_CUDA(LaunchSparseAttention(few, nullptr));
      DI_CUDA(cudaDeviceSynchronize());
    }
    const std::vector<float> host = ToFloats(four.Host());
    for (int64_t i = 0; i < 8 * kWidth; ++i) different += !(host[static_cast<size_t>(i)] == all[static_cast<size_t>(i)]);
  }
  {
    DeviceArray<float> floats(kMax * kWidth);
    floats.Poison();
    SparseAttentionArgs a = args;
    a.out = floats.data();
    a.out_type = OutputType::kFloatRounded;
    DI_CUDA(LaunchSparseAttention(a, nullptr));
    DI_CUDA(cudaDeviceSynchronize());
    const std::vector<float> host = floats.Host();
    for (size_t i = 0; i < host.size(); ++i) different += !(host[i] == all[i]);
  }
  Check("attention", worst, 6e-3);
  Check("attention invariance", different, 0);

  for (const int m : {1, 4, 8, 16, 64, 256}) {
    // Rows of length 640: those with short histories are left out by starting at row 7 of each 16.
    for (const bool dependent : {false, true}) {
      const int replays = quick ? 7 : 15;
      const Timing t = Time(m == 1 ? 32 : 8, [&](int i, cudaStream_t stream) {
        SparseAttentionArgs a = args;
        a.dependent = dependent;
        a.rows = m;
        const int shift = m == 256 ? 0 : m >= 16 ? (i % (256 / m)) * m : (i * 16 + 7) % 256;
        a.positions += shift;
        a.row_sequence += shift;
        a.selected += shift * kTopk;
        a.num_selected += shift;
        a.query += shift * kWidth;
        a.rope += shift * kRope;
        a.out = out.data() + shift * kWidth;
        DI_CUDA(LaunchSparseAttention(a, stream));
      }, replays);
      Record(dependent ? "attention decode, dependent launch" : "attention decode", "64x640x512", m, t,
             m * (512.0 * 288 + 128.0 * 528 + 2 * 2.0 * kWidth), 4.0 * m * 64 * 512 * 640);
    }
  }
}

}  // namespace deepinfer::bench
