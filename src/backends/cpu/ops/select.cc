// SPDX-License-Identifier: Apache-2.0
//
// Index scores and the choice of compressed groups each row may read.
#include <algorithm>
#include <limits>

#include "backends/cpu/cpu_device.h"

namespace deepinfer::cpu {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Ascending numbers of the k largest of scores[0..n); lower number first on ties; -inf entries are never chosen.
int TopK(const float* scores, int n, int k, std::vector<int32_t>& order, int32_t* out) {
  order.clear();
  for (int i = 0; i < n; ++i)
    if (scores[i] > -kInf) order.push_back(i);
  if (static_cast<int>(order.size()) > k) {
    std::nth_element(order.begin(), order.begin() + k, order.end(), [scores](int32_t x, int32_t y) {
      return scores[x] != scores[y] ? scores[x] > scores[y] : x < y;
    });
    order.resize(static_cast<size_t>(k));
  }
  std::sort(order.begin(), order.end());
  std::copy(order.begin(), order.end(), out);
  return static_cast<int>(order.size());
}

}  // namespace

void CpuDevice::Select(const device::Step& step, const device::SelectArgs& args) {
  using Candidates = device::SelectArgs::Candidates;
  const device::KeyCache& cache = args.cache;
  const int dim = cache.index_dim;
  const int64_t data_bytes = device::KeyDataBytes(cache.index_format, dim);
  const int64_t scale_bytes = device::KeyScaleBytes(cache.index_format, dim);
  const bool tracing = args.trace_scores != nullptr;

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
    float* key = Scratch(thread, 1, dim);
    const float* query = Row(args.query, t);
    const float* weight = Row(args.weight, t);
    const auto score = [&](int first, int last) {
      for (int g = first; g < last; ++g) {
        const uint8_t* region = cache.pool + rows.block_table[g / cache.entries_per_block] * cache.block_stride + cache.index_offset;
        const int64_t entry = g % cache.entries_per_block;
        row_ops_.decode_key(cache.index_format, region + entry * data_bytes,
                            region + cache.entries_per_block * data_bytes + entry * scale_bytes, dim, key);
        float sum = 0;
        for (int h = 0; h < args.heads; ++h) sum += weight[h] * std::max(row_ops_.dot(query + h * dim, key, dim), 0.0f);
        scores[g] = sum;
      }
    };
    const bool restricted = args.role == Candidates::kConsume && args.num_candidates[t] >= 0;
    if (restricted && !tracing) {
      std::fill_n(scores, visible, -kInf);
      for (int c = 0; c < args.num_candidates[t]; ++c) {
        const int first = args.candidates[t * args.keep_blocks + c] * args.block_size;
        score(first, std::min(first + args.block_size, visible));
      }
    } else {
      score(0, visible);
    }
    if (tracing) std::copy_n(scores, visible, args.trace_scores + t * args.trace_groups);

    std::vector<int32_t> order;
    if (args.role == Candidates::kProduce) {
      float* blocks = Scratch(thread, 2, num_blocks + 1);
      for (int b = 0; b < num_blocks; ++b) {
        const int end = std::min((b + 1) * args.block_size, visible);
        float best = -kInf;
        for (int g = b * args.block_size; g < end; ++g) best = std::max(best, scores[g]);
        blocks[b] = b == num_blocks - 1 ? kInf : best;
      }
      if (args.trace_block_scores != nullptr) {
        const int64_t width = (args.trace_groups + args.block_size - 1) / args.block_size;
        std::fill_n(args.trace_block_scores + t * width, width, -kInf);
        std::copy_n(blocks, num_blocks, args.trace_block_scores + t * width);
      }
      if (!keeps_all_blocks)
        args.num_candidates[t] =
            TopK(blocks, num_blocks, args.keep_blocks, order, args.candidates + t * args.keep_blocks);
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
    args.num_selected[t] = TopK(scores, visible, args.topk, order, selected);
  });
}

}  // namespace deepinfer::cpu
