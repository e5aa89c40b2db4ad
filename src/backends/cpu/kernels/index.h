// SPDX-License-Identifier: Apache-2.0
//
// Index scores and selection (model.md 6.4, 6.5): score[g] = sum_h w_h * relu(q_h . k_g), then the best groups in ascending
// order. With FP4 queries and keys the products are summed as integers per block of 32 channels, which is exact, so all
// instruction sets give the same bits. The sum over heads has eight lanes (head mod 8), ascending, and one fixed fold.
#pragma once

#include <cstdint>

#include "backends/cpu/kernels/aligned_buffer.h"

namespace deepinfer::cpu {

// One query row in the form the score kernels read. Reusable.
class IndexScorer {
 public:
  // query [heads, dim], weights [heads]. is_fp4: every 32 channels are e2m1 values times one power of two (dim a multiple
  // of 32), scored against FP4 keys; else any floats, scored against float keys.
  void Prepare(const float* query, const float* weights, int heads, int dim, bool is_fp4);

  // FP4 keys: key i has its codes at data + i * dim / 2 (low nibble first) and its ue8m0 scales at scales + i * dim / 32.
  void ScoreFp4(const uint8_t* data, const uint8_t* scales, int num_keys, float* scores) const;
  // float keys [num_keys, dim].
  void ScoreFloat(const float* keys, int num_keys, float* scores) const;

  struct View {
    int padded_heads;             // heads padded to a multiple of 8, or of 16 for AVX-512
    int dim;
    const float* weights;   // [padded_heads], 0 for padding
    // Doubled e2m1 values [dim/4][padded_heads][4]; in each block of 32 channels four times four even channels, then the odd
    // ones: the order in which the two halves of the keys' bytes hold them.
    const int8_t* codes;
    const int32_t* offset;  // [dim/32][padded_heads] -12 * sum of the block's codes
    const float* scale;     // [dim/32][padded_heads] a quarter of the block's power of two
    const float* values;    // [dim][padded_heads] (float queries)
  };
  const View& view() const { return view_; }

 private:
  View view_{};
  AlignedBuffer buffer_;
};

// Numbers of the min(k, finite count) largest of scores[0..n), ascending; the lower number wins ties; -inf is never
// chosen. Returns how many were written. Many scores: the k-th largest of the maxima of equal pieces bounds the k-th largest
// score from below, so one look at all of them and one at the few pieces that reach it give a short list; else, or when
// ties make that list long, a radix selection in three passes.
int SelectTopK(const float* scores, int n, int k, int32_t* out);

// maxima[b] = largest of scores[b * block_size ...) for the ceil(n / block_size) blocks; the last one gets +inf.
void BlockMaxima(const float* scores, int n, int block_size, float* maxima);

}  // namespace deepinfer::cpu
