// SPDX-License-Identifier: Apache-2.0
//
// Index scores and exact top-512, 32 heads of 128 channels over FP4 keys.
#include "bench/kernels_cuda.h"

#include <numeric>
#include <random>

#include "backends/cuda/kernels/indexer.h"

namespace deepinfer::bench {
namespace {

using namespace deepinfer::cuda;

constexpr int kPerBlock = 128, kTopk = 512, kKeepBlocks = 2048;
constexpr int64_t kBlockBytes = kPerBlock * 68;

__global__ void ScalesKernel(uint8_t* pool, int64_t blocks) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < blocks * kPerBlock * 4; i += int64_t{gridDim.x} * blockDim.x) {
    uint8_t& s = pool[i / (kPerBlock * 4) * kBlockBytes + kPerBlock * 64 + i % (kPerBlock * 4)];
    s = 124 + (s & 3);
  }
}
// FP4 values times a power of two.
__global__ void QueryKernel(__nv_bfloat16* q, int64_t n, uint32_t seed) {
  constexpr float kValues[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t r = Hash(i, seed), e = Hash(i / 32, seed + 1) & 3;
    q[i] = __float2bfloat16_rn((r & 8 ? -1.0f : 1.0f) * kValues[r & 7] * exp2f(static_cast<float>(e) - 3));
  }
}
// One thread per group.
__global__ void ReferenceKernel(const uint8_t* pool, const int32_t* table, const __nv_bfloat16* q, const float* w, int n, float* out) {
  constexpr float kValues[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const int g = blockIdx.x * blockDim.x + threadIdx.x;
  if (g >= n) return;
  const uint8_t* region = pool + table[g / kPerBlock] * kBlockBytes;
  double sum = 0;
  for (int h = 0; h < 32; ++h) {
    double dot = 0;
    for (int c = 0; c < 128; ++c) {
      const int code = region[g % kPerBlock * 64 + c / 2] >> (4 * (c & 1)) & 15;
      dot += (code & 8 ? -1.0 : 1.0) * kValues[code & 7] * exp2(region[kPerBlock * 64 + g % kPerBlock * 4 + c / 32] - 127.0) *
             static_cast<double>(__bfloat162float(q[h * 128 + c]));
    }
    sum += static_cast<double>(w[h]) * (dot > 0 ? dot : 0);
  }
  out[g] = static_cast<float>(sum);
}

std::vector<int32_t> HostTopK(const float* scores, int n, int k) {
  std::vector<int32_t> order;
  for (int i = 0; i < n; ++i)
    if (scores[i] > -INFINITY) order.push_back(i);
  const size_t keep = std::min<size_t>(static_cast<size_t>(k), order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<long>(keep), order.end(),
                    [&](int a, int b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  order.resize(keep);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

void BenchIndexer(bool quick) {
  constexpr int kMaxGroups = 1 << 20;
  constexpr int kCopies = 4;  // of the largest key set: more than the L2 cache
  constexpr int64_t kBlocks = int64_t{kCopies} * kMaxGroups / kPerBlock;
  DeviceArray<uint8_t> pool(kBlocks * kBlockBytes);
  FillBytes(pool.data(), pool.size(), Fill::kBytes, 41);
  ScalesKernel<<<1024, 256>>>(pool.data(), kBlocks);
  std::vector<int32_t> tables(static_cast<size_t>(kBlocks));
  std::iota(tables.begin(), tables.end(), 0);
  std::mt19937 rng(9);
  std::shuffle(tables.begin(), tables.end(), rng);
  DeviceArray<int32_t> table(tables);
  constexpr int kRows = 64;
  DeviceArray<__nv_bfloat16> query(kRows * 4096);
  QueryKernel<<<64, 256>>>(query.data(), query.size(), 5);
  DeviceArray<float> weight(kRows * 32);
  FillNormal(weight.data(), weight.size(), 1.0f, 6);
  DeviceArray<int32_t> selected(kRows * kTopk), num_selected(kRows), candidates(kRows * kKeepBlocks), num_candidates(kRows);

  struct Case {
    int rows, groups;
    IndexerArgs::Role role;
    const char* name;
    bool ties;
  };
  const Case cases[] = {
      {1, 65536, IndexerArgs::Role::kNone, "64k", false},
      {1, 1 << 20, IndexerArgs::Role::kNone, "1M", false},
      {1, 65536, IndexerArgs::Role::kProduce, "64k produce", false},
      {1, 1 << 20, IndexerArgs::Role::kProduce, "1M produce", false},
      {1, 1 << 20, IndexerArgs::Role::kConsume, "1M consume", false},
      {64, 8192, IndexerArgs::Role::kNone, "8k", false},
      {1, 6001, IndexerArgs::Role::kNone, "6001", false},
      {1, 300000, IndexerArgs::Role::kNone, "300k ties", true},
      {3, 513, IndexerArgs::Role::kNone, "513", false},
      {2, 512, IndexerArgs::Role::kNone, "512", false},
  };
  for (const Case& c : cases) {
    DeviceArray<uint8_t> workspace(IndexerWorkspaceBytes(c.rows, c.groups));
    std::vector<device::SequenceRows> sequences;
    std::vector<int32_t> positions, row_sequence;
    for (int r = 0; r < c.rows; ++r) {
      sequences.push_back({r, 1, c.groups - 1, 0, nullptr, table.data() + (int64_t{r} * c.groups / kPerBlock) % (kBlocks - kMaxGroups / kPerBlock)});
      positions.push_back(c.groups - 1 - (r % 3));
      row_sequence.push_back(r);
    }
    DeviceArray<device::SequenceRows> d_sequences(sequences);
    DeviceArray<int32_t> d_positions(positions), d_row_sequence(row_sequence);
    IndexerArgs args;
    args.rows = c.rows;
    args.sequences = d_sequences.data();
    args.positions = d_positions.data();
    args.row_sequence = d_row_sequence.data();
    args.cache.pool = pool.data();
    args.cache.block_stride = kBlockBytes;
    args.cache.entries_per_block = kPerBlock;
    args.cache.ratio = 1;
    args.cache.index_dim = 128;
    args.cache.index_format = device::KeyFormat::kFp4Pow2;
    args.max_groups = c.groups;
    args.query = query.data();
    args.ldq = 4096;
    args.weight = weight.data();
    args.weight_is_float = true;
    args.ldw = 32;
    args.topk = kTopk;
    args.role = c.role;
    args.keep_blocks = kKeepBlocks;
    args.candidates = candidates.data();
    args.num_candidates = num_candidates.data();
    args.selected = selected.data();
    args.num_selected = num_selected.data();
    args.workspace = workspace.data();
    DeviceArray<float> no_weight(32);
    if (c.ties) args.weight = no_weight.data();  // every score is 0
    if (c.role == IndexerArgs::Role::kConsume) {
      args.role = IndexerArgs::Role::kProduce;
      DI_CUDA(LaunchIndexer(args, nullptr));
      args.role = c.role;
    }
    const std::vector<int32_t> blocks = candidates.Host();
    selected.Poison();
    num_selected.Poison();
    DI_CUDA(LaunchIndexer(args, nullptr));
    DI_CUDA(cudaDeviceSynchronize());
    const std::vector<int32_t> got = selected.Host(), count = num_selected.Host(), got_blocks = candidates.Host(),
                               block_count = num_candidates.Host();
    double wrong = 0, score_error = 0;
    for (int r = 0; r < c.rows; r += c.rows > 8 ? 21 : 1) {
      const int n = positions[static_cast<size_t>(r)] + 1;
      DeviceArray<float> reference(n);
      ReferenceKernel<<<(n + 127) / 128, 128>>>(pool.data(), sequences[static_cast<size_t>(r)].block_table, query.data() + r * 4096,
                                                static_cast<const float*>(args.weight) + r * 32, n, reference.data());
      const std::vector<float> exact = reference.Host();
      std::vector<float> scores(exact.size(), 0.0f);
      const int64_t stride = (int64_t{c.groups} + 63) / 64 * 64;
      if (n > kTopk) {
        const int64_t scored = c.role == IndexerArgs::Role::kConsume ? kKeepBlocks * 8 : n;
        std::vector<float> raw(static_cast<size_t>(scored));
        DI_CUDA(cudaMemcpy(raw.data(), reinterpret_cast<float*>(workspace.data()) + r * stride, raw.size() * 4, cudaMemcpyDeviceToHost));
        if (c.role == IndexerArgs::Role::kConsume) {
          std::fill(scores.begin(), scores.end(), -INFINITY);
          for (int i = 0; i < kKeepBlocks * 8; ++i) {
            const int g = blocks[static_cast<size_t>(i / 8)] * 8 + i % 8;
            if (g < n) scores[static_cast<size_t>(g)] = raw[static_cast<size_t>(i)];
          }
        } else {
          scores = raw;
        }
        std::vector<float> a, b;
        for (size_t i = 0; i < scores.size(); ++i)
          if (scores[i] > -INFINITY) a.push_back(scores[i]), b.push_back(exact[i]);
        if (!c.ties) score_error = std::max(score_error, RelativeError(a, b));
      }
      const std::vector<int32_t> want = HostTopK(scores.data(), n, kTopk);
      wrong += count[static_cast<size_t>(r)] != static_cast<int32_t>(want.size());
      for (size_t i = 0; i < want.size(); ++i) wrong += got[static_cast<size_t>(r) * kTopk + i] != want[i];
      if (c.role == IndexerArgs::Role::kProduce) {
        const int num_blocks = (n + 7) / 8;
        if (num_blocks <= kKeepBlocks) {
          wrong += block_count[static_cast<size_t>(r)] != -1;
        } else {
          std::vector<float> best(static_cast<size_t>(num_blocks), -INFINITY);
          for (int i = 0; i < n; ++i) best[static_cast<size_t>(i / 8)] = std::max(best[static_cast<size_t>(i / 8)], scores[static_cast<size_t>(i)]);
          best.back() = INFINITY;
          const std::vector<int32_t> want_blocks = HostTopK(best.data(), num_blocks, kKeepBlocks);
          wrong += block_count[static_cast<size_t>(r)] != kKeepBlocks;
          for (size_t i = 0; i < want_blocks.size(); ++i) wrong += got_blocks[static_cast<size_t>(r) * kKeepBlocks + i] != want_blocks[i];
        }
      }
    }
    Check(std::string("indexer scores ") + c.name, score_error, 1e-5);
    Check(std::string("indexer selection ") + c.name, wrong, 0);
    if (c.groups < 8192 || c.ties) continue;
    for (const bool dependent : {false, true}) {
      // Another place of the pool for every launch.
      const int nodes = 8;
      std::vector<DeviceArray<device::SequenceRows>> places;
      for (int i = 0; i < nodes; ++i) {
        std::vector<device::SequenceRows> moved = sequences;
        for (auto& s : moved) s.block_table = table.data() + (int64_t{i % kCopies} * kMaxGroups / kPerBlock + (s.block_table - table.data())) % (kBlocks - c.groups / kPerBlock + 1);
        places.emplace_back(moved);
      }
      const Timing t = Time(nodes, [&](int i, cudaStream_t stream) {
        IndexerArgs a = args;
        a.sequences = places[static_cast<size_t>(i)].data();
        a.dependent = dependent;
        DI_CUDA(LaunchIndexer(a, stream));
      }, quick ? 7 : 15);
      const double scored = c.role == IndexerArgs::Role::kConsume ? kKeepBlocks * 8 : c.groups;
      Record(dependent ? "indexer, dependent launch" : "indexer", c.name, c.rows, t, c.rows * scored * 68, c.rows * scored * 2 * 32 * 128);
    }
  }
}

}  // namespace deepinfer::bench
