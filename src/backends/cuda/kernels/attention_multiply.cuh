// SPDX-License-Identifier: Apache-2.0
//
// The multiplying warpgroups of sparse attention, and the exchange between the two blocks of a row.
#pragma once

#include "backends/cuda/kernels/attention_decode.cuh"
#include "backends/cuda/kernels/attention_merge.cuh"
#include "backends/cuda/kernels/wgmma.cuh"

namespace deepinfer::cuda {

enum class ResultForm {
  kBf16,          // 64 rotated channels, no trace
  kFloatRounded,  // the same in float32
  kAny
};

// Four words of four neighbouring lanes: word j of lane t becomes word t of lane j.
__device__ __forceinline__ void Transpose4x4(uint32_t (&w)[4], int t) {
#pragma unroll
  for (int d = 1; d <= 2; d *= 2) {
    const bool high = t & d;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int i = d == 1 ? 2 * k : k;  // the pair (i, i + d)
      const uint32_t received = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + d], d);
      if (high) {
        w[i] = received;
      } else {
        w[i + d] = received;
      }
    }
  }
}

template <int kParts, ResultForm kForm>
__device__ __forceinline__ void Multiply(const SparseAttentionArgs& a,
                                         const Work<kParts>& work,
                                         RowKeys keys,
                                         const AttentionWorkspace& ws,
                                         int max_splits,
                                         uint8_t* smem) {
  constexpr int kChunks = kParts > 0 ? 8 / kParts : 8;  // of 32 channels, for each warpgroup
  auto* const bars = reinterpret_cast<Barriers*>(smem + kBarriersOffset);
  auto* const exchange = reinterpret_cast<Exchange*>(smem + kExchangeOffset);
  uint8_t* const tiles = smem + kTilesOffset;
  const int group = static_cast<int>(Uniform(threadIdx.x / 128)), warp = threadIdx.x / 32,
            lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const uint64_t query_descriptor = SmemDescriptor(Uniform(SmemAddr(smem)), 1024, Swizzle::k128);
  const uint64_t tiles_descriptor = SmemDescriptor(Uniform(SmemAddr(tiles)), 1024, Swizzle::k128);
  const int head = (warp % 4) * 16 + g;
  const float factor = rsqrtf(static_cast<float>(kDim)) * kLog2e * kKeyFactor;
  uint32_t count = 0, other_count = 0;  // splits of this and of the other block
  uint32_t exchanges = 0;
  // Number of chunk c among all. The first four are kept at the end, so blocks start with different
  // ones.
  const auto chunk_of = [&](int c) {
    return kParts > 0 ? (work.part * 2 + group) * kChunks + c : group * 8 + (c ^ (work.rank * 4));
  };
  uint32_t rows_loaded = 0;
  const auto load_query = [&](int row) {
    const __nv_bfloat16* from = a.query + row * a.ldq;
    if (kParts == 0 && kForm != ResultForm::kAny && threadIdx.x < 16)
      AsyncCopy16(SmemAddr(&exchange->rope[rows_loaded & 1][threadIdx.x * 4]),
                  a.rope + int64_t{row} * 64 + threadIdx.x * 4,
                  true);
    ++rows_loaded;
#pragma unroll 8
    for (int i = threadIdx.x; i < kHeads * kDim / 8; i += 256)
      AsyncCopy16(SmemAddr(smem) + TileOffset<kHeads>(i / 64, i % 64), from + i * 8, true);
    AsyncCommit();
  };
  if (kParts == 0 && threadIdx.x < kHeads) exchange->sinks[threadIdx.x] = a.sink[threadIdx.x];
  if (work.first_row < a.rows) load_query(work.first_row);
  KeyCount ahead;
  for (int row = work.first_row; row < a.rows; row += work.row_step) {
    if (row != work.first_row) keys.num_keys = ahead.Get(a);
    if (row + work.row_step < a.rows) ahead.Begin(a, row + work.row_step);
    const int num_splits = work.Count(keys, work.rank);
    const int next_row = row + work.row_step;
    if (num_splits == 0) {  // the other block does all of this row
      AsyncWait<0>();
      NamedSync(1, 256);
      if (next_row < a.rows) {
        load_query(next_row);
        ahead.Continue(a);
      }
      other_count += work.Count(keys, 1 - work.rank);
      continue;
    }
    AsyncWait<0>();
    AsyncProxyFence();
    NamedSync(1, 256);
    const uint32_t row_parity = (rows_loaded - 1) & 1;
    float values[kChunks][16];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 16; ++i) values[c][i] = 0.0f;
    }
    Merged merged[2];

    for (int i_split = 0; i_split < num_splits; ++i_split, ++count) {
      const int s = work.Split(i_split);
      const bool is_last = i_split + 1 == num_splits;
      const int buffer = count & 1;
      const uint64_t tile = Advance(tiles_descriptor, Uniform(buffer * kTileBytes));
      BarrierWait(&bars->full[buffer * 2 + group], count / 2 & 1);

      // Scores of this warpgroup's 32 keys.
      float z[16];
      const uint64_t half = Advance(tile, group * kHalfBytes);
      WarpgroupArrive();
#pragma unroll
      for (int i = 0; i < 32; ++i)
        Wgmma<32>::SS(z,
                      Advance(query_descriptor, (i / 4) * kQueryPanelBytes + (i % 4) * 32),
                      Advance(half, (i / 4) * kPanelBytes + (i % 4) * 32),
                      i > 0);
      WarpgroupCommit();
      WarpgroupWait<0>();
      FenceRegisters(z);

      // Weights relative to the split's maximum; rows g and g + 8.
      float top[2] = {kLowest, kLowest}, sum[2] = {0.0f, 0.0f};
      const int present = keys.num_keys - s * kKeys - group * kHalfKeys;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int key = (i / 4) * 8 + 2 * t + (i & 1);
        z[i] = key < present ? z[i] * factor : -INFINITY;
        top[(i / 2) & 1] = fmaxf(top[(i / 2) & 1], z[i]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
        if (t == 0) exchange->maxima[group][head + 8 * r] = top[r];
      }
      NamedSync(1, 256);
      // Both warpgroups are done with this query.
      if (is_last && next_row < a.rows) {
        load_query(next_row);
        ahead.Continue(a);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], exchange->maxima[1 - group][head + 8 * r]);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        z[i] = Exp2(z[i] - top[(i / 2) & 1]);
        sum[(i / 2) & 1] += z[i];
      }
      // Accumulator layout to operand layout: columns 8j + 2t of 16 keys.
      uint32_t mine[2][4], p[4][4];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) mine[k][i] = PackBf16(z[8 * k + 2 * i], z[8 * k + 2 * i + 1]);
        exchange->weights[group][k][threadIdx.x % 128] =
            make_uint4(mine[k][0], mine[k][1], mine[k][2], mine[k][3]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        if (t == 0) exchange->sums[group][head + 8 * r] = sum[r];
      }
      NamedSync(1, 256);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint4 o = exchange->weights[1 - group][k][threadIdx.x % 128];
        const uint32_t theirs[4] = {o.x, o.y, o.z, o.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[k][i] = group == 0 ? mine[k][i] : theirs[i];
          p[2 + k][i] = group == 0 ? theirs[i] : mine[k][i];
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) sum[r] += exchange->sums[1 - group][head + 8 * r];
      float old_factor[2], new_factor[2];
      if constexpr (kParts == 0) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          MergeFactors(merged[r], top[r], sum[r], old_factor[r], new_factor[r]);
      }

      FenceRegisters(p);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        float acc[16];
        const uint64_t panel = Advance(tile, chunk_of(c) / 2 * kPanelBytes + chunk_of(c) % 2 * 64);
        WarpgroupArrive();
#pragma unroll
        for (int k = 0; k < 4; ++k)
          Wgmma<32>::RS<true>(acc, p[k], Advance(panel, k / 2 * kHalfBytes + k % 2 * 2048), k > 0);
        WarpgroupCommit();
        WarpgroupWait<0>();
        FenceRegisters(acc);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int r = (i / 2) & 1;
          values[c][i] =
              kParts > 0 ? acc[i] : MergeValue(values[c][i], old_factor[r], acc[i], new_factor[r]);
        }
      }
      __syncwarp();
      // The tile of the last split is needed for the exchange with the other block.
      if (lane == 0 && (kParts > 0 || !is_last)) BarrierArrive(&bars->empty[buffer]);

      if constexpr (kParts > 0) {
        const int64_t at = (int64_t{row} * max_splits + s) * kHeads;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
#pragma unroll
          for (int i = 0; i < 16; i += 2) {
            const int column = chunk_of(c) * 32 + (i / 4) * 8 + 2 * t;
            *reinterpret_cast<float2*>(ws.values + (at + head + 8 * ((i / 2) & 1)) * kDim +
                                       column) = make_float2(values[c][i], values[c][i + 1]);
          }
        }
        if (work.part == 0 && group == 0 && t == 0) {
          for (int r = 0; r < 2; ++r)
            *reinterpret_cast<float2*>(ws.stats + (at + head + 8 * r) * 2) =
                make_float2(top[r], sum[r]);
        }
      }
    }
    if constexpr (kParts == 0) {
      const int other = 1 - work.rank;
      other_count += work.Count(keys, other);
      const bool is_shared = keys.splits() > 1;
      const int own_tile = (count - 1) & 1;
      if (is_shared) {
        const uint32_t to = RemoteAddress(
            SmemAddr(tiles) + ((other_count - 1) & 1) * kTileBytes + threadIdx.x * 16, other);
        const uint32_t sent = RemoteAddress(SmemAddr(&bars->other_sent), other);
        if (lane == 0) RemoteArrive(RemoteAddress(SmemAddr(&bars->other_ready), other));
        if (threadIdx.x == 0) BarrierExpect(&bars->other_sent, kTileBytes + kHeads * 8);
        BarrierWait(&bars->other_ready, exchanges & 1);
        if (group == 0 && t < 2) {
          RemoteStore(RemoteAddress(SmemAddr(&exchange->other[head + 8 * t]), other),
                      t == 0 ? merged[0].top : merged[1].top,
                      t == 0 ? merged[0].sum : merged[1].sum,
                      sent);
        }
#pragma unroll
        for (int c = 4; c < 8; ++c) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            RemoteStore(to + ((c - 4) * 4 + i) * 4096,
                        make_float4(values[c][4 * i],
                                    values[c][4 * i + 1],
                                    values[c][4 * i + 2],
                                    values[c][4 * i + 3]),
                        sent);
        }
        BarrierWait(&bars->other_sent, exchanges & 1);
        ++exchanges;
        float mine_factor[2], theirs_factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float2 o = exchange->other[head + 8 * r];
          Merged first = merged[r], second{o.x, o.y};
          if (work.rank == 1) first = second, second = merged[r];
          float old_factor, new_factor;
          MergeFactors(first, second.top, second.sum, old_factor, new_factor);
          merged[r] = first;
          mine_factor[r] = work.rank == 0 ? old_factor : new_factor;
          theirs_factor[r] = work.rank == 0 ? new_factor : old_factor;
        }
        const float4* from =
            reinterpret_cast<const float4*>(tiles + own_tile * kTileBytes) + threadIdx.x;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float4 o = from[(c * 4 + i) * 256];
            const float theirs[4] = {o.x, o.y, o.z, o.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              float& mine = values[c][4 * i + j];
              const int r = j / 2;
              mine = work.rank == 0 ? MergeValue(mine, mine_factor[r], theirs[j], theirs_factor[r])
                                    : MergeValue(theirs[j], theirs_factor[r], mine, mine_factor[r]);
            }
          }
        }
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(&bars->empty[own_tile]);

      float inverse[2];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        inverse[r] = kKeyFactor * __frcp_rn(Denominator(merged[r], exchange->sinks[head + 8 * r]));
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (c >= 4 && is_shared) break;
        const int chunk = chunk_of(c);
        if constexpr (kForm != ResultForm::kAny) {
          const float* const rope = exchange->rope[row_parity] + chunk % 2 * 16 + t;
          const int64_t at = row * a.ldo + head * kDim + chunk * 32;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float x[4], y[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              x[j] = RoundBf16(values[c][4 * j + 2 * r] * inverse[r]);
              y[j] = RoundBf16(values[c][4 * j + 2 * r + 1] * inverse[r]);
              if (chunk / 2 == kPanels - 1) {
                const float cosine = rope[4 * j], sine = rope[32 + 4 * j];
                const float rx = x[j] * cosine + y[j] * sine, ry = y[j] * cosine - x[j] * sine;
                x[j] = RoundBf16(rx), y[j] = RoundBf16(ry);
              }
            }
            if constexpr (kForm == ResultForm::kBf16) {
              // A lane gets eight neighbouring channels.
              uint32_t words[4];
#pragma unroll
              for (int j = 0; j < 4; ++j) words[j] = PackBf16(x[j], y[j]);
              Transpose4x4(words, t);
              *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(a.out) + at + 8 * t +
                                        r * 8 * kDim) =
                  make_uint4(words[0], words[1], words[2], words[3]);
            } else {
              float* const out = static_cast<float*>(a.out) + at + 2 * t + r * 8 * kDim;
#pragma unroll
              for (int j = 0; j < 4; ++j)
                *reinterpret_cast<float2*>(out + j * 8) = make_float2(x[j], y[j]);
            }
          }
        } else {
#pragma unroll
          for (int i = 0; i < 16; i += 2) {
            const int r = (i / 2) & 1;
            const int column = chunk * 32 + (i / 4) * 8 + 2 * t;
            StorePair<false>(a,
                             row,
                             row * a.ldo + int64_t{head + 8 * r} * kDim,
                             column,
                             values[c][i] * inverse[r],
                             values[c][i + 1] * inverse[r]);
          }
        }
      }
    }
  }
}

}  // namespace deepinfer::cuda
