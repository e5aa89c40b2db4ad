// SPDX-License-Identifier: Apache-2.0
//
// Index scores and the choice of compressed groups each row may read.
#include <algorithm>
#include <limits>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/kernels/index.h"

namespace deepinfer::cpu {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

void CpuDevice::Select(const device::Step& step, const device::SelectArgs& args) {
  using Candidates = device::SelectArgs::Candidates;
  const device::KeyCache& cache = args.cache;
  const int dim = cache.index_dim;
  const int64_t data_bytes = device::KeyDataBytes(cache.index_format, dim);
  const int64_t scale_bytes = device::KeyScaleBytes(cache.index_format, dim);
  const bool tracing = args.trace_scores != nullptr;

  const bool is_fp4 = cache.index_format == device::KeyFormat::kFp4Pow2;
  scorers_.resize(static_cast<size_t>(pool_->num_threads()));
  pool_->ParallelFor(step.num_rows, [&](int64_t t, int thread) {
    const device::SequenceRows& rows = step.sequences[step.row_sequence[t]];
    const int visible = (step.positions[t] + 1) / cache.ratio;
    const int num_blocks = args.block_size > 0 ? (visible + args.block_size - 1) / args.block_size : 0;
    int32_t* selected = args.selected + t * args.topk;
    const bool keeps_all_blocks = num_blocks <= args.keep_blocks;
    if (args.role == Candidates::kProduce && keeps_all_blocks) args.num_candidates[t] = -1;
    if (tracing) std::fill_n(args.trace_scores + t * args.trace_groups, args.trace_groups, -kInf);
    if (visible <= args.topk && !tracing) {
      for (int g = 0; g < visible; ++g) selected[g] = g;
      args.num_selected[t] = visible;
      return;
    }

    float* scores = Scratch(thread, 0, visible + 1);
    IndexScorer& scorer = scorers_[static_cast<size_t>(thread)];
    scorer.Prepare(Row(args.query, t), Row(args.weight, t), args.heads, dim, is_fp4);
    const auto score_run = [&](int first, int last) {
      while (first < last) {
        const int64_t entry = first % cache.entries_per_block;
        const int n = std::min(last - first, cache.entries_per_block - static_cast<int>(entry));
        const uint8_t* region =
            cache.pool + rows.block_table[first / cache.entries_per_block] * cache.block_stride + cache.index_offset;
        if (is_fp4) {
          scorer.ScoreFp4(region + entry * data_bytes, region + cache.entries_per_block * data_bytes + entry * scale_bytes, n,
                          scores + first);
        } else {
          scorer.ScoreFloat(reinterpret_cast<const float*>(region) + entry * dim, n, scores + first);
        }
        first += n;
      }
    };
    const auto score = [&](int first, int last) {
      constexpr int kLeastGroups = 128, kMostGroups = 4096;
      if (step.num_rows > 1 || last - first < 2 * kLeastGroups) return score_run(first, last);
      // One row alone: its groups are the work to share, in about eight items a thread.
      const int share = (last - first) / (8 * pool_->num_threads()) / kLeastGroups * kLeastGroups;
      const int groups = std::clamp(share, kLeastGroups, kMostGroups);
      pool_->ParallelFor((last - first + groups - 1) / groups, [&](int64_t item, int) {
        const int begin = first + static_cast<int>(item) * groups;
        score_run(begin, std::min(begin + groups, last));
      });
    };
    const bool restricted = args.role == Candidates::kConsume && args.num_candidates[t] >= 0;
    if (restricted && !tracing) {
      std::fill_n(scores, visible, -kInf);
      const int32_t* blocks = args.candidates + t * args.keep_blocks;
      for (int c = 0; c < args.num_candidates[t];) {
        int end = c + 1;  // adjacent blocks are scored as one run
        while (end < args.num_candidates[t] && blocks[end] == blocks[end - 1] + 1) ++end;
        score(blocks[c] * args.block_size, std::min((blocks[end - 1] + 1) * args.block_size, visible));
        c = end;
      }
    } else {
      score(0, visible);
    }
    if (tracing) std::copy_n(scores, visible, args.trace_scores + t * args.trace_groups);

    if (args.role == Candidates::kProduce) {
      float* blocks = Scratch(thread, 2, num_blocks + 1);
      BlockMaxima(scores, visible, args.block_size, blocks);
      if (args.trace_block_scores != nullptr) {
        const int64_t width = (args.trace_groups + args.block_size - 1) / args.block_size;
        std::fill_n(args.trace_block_scores + t * width, width, -kInf);
        std::copy_n(blocks, num_blocks, args.trace_block_scores + t * width);
      }
      if (!keeps_all_blocks)
        args.num_candidates[t] =
            SelectTopK(blocks, num_blocks, args.keep_blocks, args.candidates + t * args.keep_blocks);
    }
    if (restricted && tracing) {
      int next = 0;
      for (int b = 0; b < num_blocks; ++b) {
        if (next < args.num_candidates[t] && args.candidates[t * args.keep_blocks + next] == b) {
          ++next;
          continue;
        }
        std::fill(scores + b * args.block_size, scores + std::min((b + 1) * args.block_size, visible), -kInf);
      }
    }
    args.num_selected[t] = SelectTopK(scores, visible, args.topk, selected);
  });
}

}  // namespace deepinfer::cpu
