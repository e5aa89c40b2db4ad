// SPDX-License-Identifier: Apache-2.0
//
// Host functions that start the general kernels: plain pointers and shapes, one stream. They take every width that a test model
// has; kernels/ holds those for the released shapes. An `F` is rows of float32 `stride` apart.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/device.h"

namespace deepinfer::cuda {

struct F {
  float* data = nullptr;
  int64_t stride = 0;
};

// A weight matrix on the device: rows padded with zeros to a multiple of 32 columns. Scales: ue8m0, one per 32 columns of
// 1 << scale_shift rows.
struct WeightView {
  device::WeightFormat format = device::WeightFormat::kBf16;
  int32_t scale_shift = 0;
  int64_t rows = 0;
  int64_t padded_cols = 0;
  const uint8_t* data = nullptr;
  const uint8_t* scale = nullptr;
};
constexpr int64_t WeightRowBytes(device::WeightFormat format, int64_t padded_cols) {
  switch (format) {
    case device::WeightFormat::kF32: return 4 * padded_cols;
    case device::WeightFormat::kBf16: return 2 * padded_cols;
    case device::WeightFormat::kFp4Row32: return padded_cols / 2;
    default: return padded_cols;
  }
}

// An input of products: float32 or bf16 values whose rows may be read up to a multiple of 32 columns.
struct InputView {
  const void* values = nullptr;
  bool is_bf16 = false;
  bool quantize = false;  // float32 that products with FP8 weights quantise as they read it
  int64_t rows = 0;
  int64_t stride = 0;
};

struct TableView {
  device::WeightFormat format = device::WeightFormat::kBf16;
  int64_t cols = 0;
  const uint8_t* data = nullptr;
  const uint8_t* scale = nullptr;
};

// ---- uploads.cu ---------------------------------------------------------------------------------------------------------
// Small pieces from pinned host memory to where they belong, all by one kernel. Sizes and places are multiples of 4 bytes,
// tails aside.
struct UploadPiece {
  void* to;
  const void* host_from;
  int64_t bytes;
};
inline constexpr int kMaxUploadPieces = 40;
struct UploadList {
  UploadPiece pieces[kMaxUploadPieces];
  int32_t count = 0;
};
void LaunchUploads(cudaStream_t stream, const UploadList& list);
// `to`: pinned host memory that the GPU writes. Places and size are multiples of 16 bytes.
void LaunchDownload(cudaStream_t stream, void* to, const void* from, int64_t bytes);
// Whether the current GPU can run what was compiled.
bool HasCodeForGpu();

// ---- streams.cu ---------------------------------------------------------------------------------------------------------
// The rotation tables of a step.
struct RopeTableList {
  struct {
    const int32_t* positions;
    const float* inv_freq;
    float* table;
    int64_t count;
  } tables[4];
  int32_t count = 0;
  int32_t rope_dim = 0;
};
// Embeddings, and rotation tables beside them.
void LaunchEmbed(cudaStream_t stream, bool round, const TableView& table, const int32_t* ids, const int32_t* image_row,
                 const float* image_embeds, int64_t rows, int streams, int64_t hidden, F trunk, const RopeTableList& rope);
void LaunchGatherRows(cudaStream_t stream, bool round, const TableView& table, const int32_t* ids, int64_t rows, int columns,
                      int64_t width, F out);
void LaunchCopyRows(cudaStream_t stream, F in, const int32_t* rows, int64_t num_rows, int64_t width, F out);
void LaunchEngramInject(cudaStream_t stream, bool round, F kv, const float* qk, const uint8_t* is_dead, int64_t rows, int streams,
                        int64_t hidden, float eps, F trunk, float* gate_out);
// `partial`: MixPartialFloats(rows, width) floats.
int64_t MixPartialFloats(int64_t rows, const device::HyperConnectionSite& site);
void LaunchMix(cudaStream_t stream, const device::HyperConnectionSite& site, const float* fn, F trunk, int64_t rows, float* partial,
               float* pre, float* post, float* comb);

// Optional parts of a collapse: what expands the streams first, and the input form that the norm's result gets at once.
struct ExpandPart {
  F y;
  const float* post = nullptr;  // null: no expansion
  const float* comb = nullptr;
};
struct QuantizedOut {
  uint16_t* bf16 = nullptr;  // null: none; rows `stride` apart
  int64_t stride = 0;
  uint16_t* plain = nullptr;  // not quantised; of LaunchReleasedCollapse
};
void LaunchCollapseNorm(cudaStream_t stream, bool round, const ExpandPart& expand, F trunk, const float* pre, int64_t rows,
                        int streams, int64_t hidden, const float* norm, float eps, F collapsed, F x, const QuantizedOut& quantized);
void LaunchExpand(cudaStream_t stream, bool round, const ExpandPart& expand, int64_t rows, int streams, int64_t hidden, F trunk);
void LaunchStreamMean(cudaStream_t stream, bool round, F trunk, int64_t rows, int streams, int64_t hidden, F out);

// ---- released_streams.cu ------------------------------------------------------------------------------------------------
inline constexpr int kReleasedHidden = 5120;
// Of LaunchMix: what a block multiplies.
inline constexpr int64_t kMixChunk = 256;
inline constexpr int kMixThreads = 256;
bool IsReleasedMix(const device::HyperConnectionSite& site);
// The first of LaunchMix's two kernels, faster for many rows, with the same bits.
inline constexpr int64_t kMixRows = 8;
void LaunchMixRows(cudaStream_t stream, const float* fn, F trunk, int64_t rows, float* partial);
// LaunchCollapseNorm of four streams of the released width; activations on the right aligned to 16 bytes.
void LaunchReleasedCollapse(cudaStream_t stream, bool round, const ExpandPart& expand, F trunk, const float* pre, int64_t rows, const float* norm,
                            float eps, F collapsed, F x, const QuantizedOut& out);

// ---- products.cu --------------------------------------------------------------------------------------------------------
// FP8 fake quantisation per 32 columns, as bf16 rows.
void LaunchQuantize(cudaStream_t stream, F x, int64_t rows, int64_t cols, const QuantizedOut& out);
// Copies rows of `cols` values, zeros up to `padded`.
void LaunchPad(cudaStream_t stream, F x, int64_t rows, int64_t cols, int64_t padded, float* out);
// y = x W^T. num_groups > 1: rows [g * rows / num_groups, ...) read columns [g * cols, ...) of x.
void LaunchMatMul(cudaStream_t stream, const WeightView& w, const InputView& x, int num_groups, int64_t group_cols, bool round, F y);
// Threads of a norm's block: the order of its sums.
int NormThreads(int64_t width);
void LaunchRmsNorm(cudaStream_t stream, bool round, F in, const float* norm, int64_t rows, int64_t width, float eps, F out,
                   const QuantizedOut& quantized);
void LaunchScale(cudaStream_t stream, bool round, F x, int64_t rows, int64_t width, float factor);
void LaunchAddFloats(cudaStream_t stream, const float* x, int64_t rows, int64_t width, int64_t x_stride, float* sum, int64_t sum_stride);
void LaunchArgMax(cudaStream_t stream, const float* x, int64_t rows, int64_t width, int64_t stride, int32_t* ids, int64_t ids_stride);

// ---- best.cu ------------------------------------------------------------------------------------------------------------
// masks null: every row has `mask`, which may be null.
void LaunchFindBest(cudaStream_t stream, const device::RowBestArgs& args, const uint32_t* mask, const uint32_t* const* masks, device::RowBest* out);
void LaunchMaskedArgMax(cudaStream_t stream, const device::RowBestArgs& args, const uint32_t* mask, const uint32_t* const* masks, int32_t* ids,
                        int64_t ids_stride);

// ---- keys.cu ------------------------------------------------------------------------------------------------------------
void LaunchRopeTables(cudaStream_t stream, const RopeTableList& list);
void LaunchRope(cudaStream_t stream, bool round, F x, int64_t rows, int heads, int head_dim, int rope_dim, const float* table);
void LaunchIndexQuery(cudaStream_t stream, const device::Arithmetic& a, F x, int64_t rows, int heads, int dim, int rope_dim,
                      const float* table);
// Window keys, and a norm that does not depend on them (in.data null: none) in the same kernel.
struct NormPart {
  F in;
  const float* norm = nullptr;
  int64_t width = 0;
  float eps = 0;
  F out;
  QuantizedOut quantized;
};
void LaunchWindowKeys(cudaStream_t stream, const device::Arithmetic& a, F raw, const float* norm, float eps, int64_t rows,
                      int head_dim, int rope_dim, const float* table, F keys, const NormPart& other);
struct WindowKeysPart {
  F raw;
  const float* norm = nullptr;
  float eps = 0;
  int head_dim = 0, rope_dim = 0;
  const float* table = nullptr;
  F keys;
};
// y = x W^T of FP8 weights whose input is the norm's result, and the window keys, in one kernel: of few rows.
bool CanJoinNorm(const WeightView& w, const NormPart& norm, const WindowKeysPart& keys);
void LaunchNormMatMul(cudaStream_t stream, const device::Arithmetic& a, const WeightView& w, const NormPart& norm, const WindowKeysPart& keys,
                      int64_t rows, F y);
void LaunchStoreWindow(cudaStream_t stream, const device::Step& step, const device::WindowRing& ring, int head_dim, F keys);
void LaunchPoolPairs(cudaStream_t stream, bool round, const device::Step& step, const float* products, int head_dim,
                     int64_t ring_offset, int ring_rows, const device::NewGroup* groups, int64_t num_groups, F latent);
// Behind it: it overwrites what the pooling reads.
void LaunchStorePairs(cudaStream_t stream, const device::Step& step, const float* products, int head_dim, int64_t ring_offset, int ring_rows);
// Keys of new groups, both kinds in one kernel (latent.data or raw.data null: not these).
struct CompressedKeysPart {
  F latent, trace_key;
};
struct IndexKeysPart {
  F raw;
  const float* norm = nullptr;
  float eps = 0;
  F trace_key;
};
void LaunchStoreKeys(cudaStream_t stream, const device::Arithmetic& a, const device::KeyCache& cache, const CompressedKeysPart& main,
                     const IndexKeysPart& index, const device::NewGroup* groups, int64_t num_groups, int rope_dim, const float* table);

// ---- bf16.cu ------------------------------------------------------------------------------------------------------------
// bf16 copies for kernels/, of values that are exact in bf16: columns a multiple of 8, `out` dense.
void LaunchToBf16(cudaStream_t stream, F x, int64_t rows, int64_t cols, uint16_t* out);
void LaunchFromBf16(cudaStream_t stream, const uint16_t* x, int64_t rows, int64_t cols, F out);
// Queries (rotated here where `table` is there: the last `rope_dim` channels of each head) and the step's own keys.
void LaunchAttentionInputs(cudaStream_t stream, F query, int64_t rows, int heads, int head_dim, int rope_dim, const float* table,
                           uint16_t* query_out, F keys, uint16_t* keys_out);

// ---- select.cu ----------------------------------------------------------------------------------------------------------
inline constexpr int kMaxIndexHeads = 64;
// Head weights are multiplied by `factor` first (1: they are as they should be).
struct WeightScale {
  float factor = 1.0f;
  bool round = false;
};
// scores: [rows, max_groups] floats, blocks: [rows, ceil(max_groups / block_size)] floats of scratch.
void LaunchSelect(cudaStream_t stream, const device::Step& step, const device::SelectArgs& args, int64_t first_row, int64_t rows,
                  float* scores, float* blocks, const WeightScale& scale);

// ---- attention.cu -------------------------------------------------------------------------------------------------------
// Whether the kernel for these heads can rotate the queries itself.
bool AttentionRotates(const device::AttentionArgs& args);
void LaunchAttention(cudaStream_t stream, const device::Arithmetic& a, const device::Step& step, const device::AttentionArgs& args, bool rotates);

// ---- experts.cu ---------------------------------------------------------------------------------------------------------
struct ExpertView {
  WeightView gate_up;  // of one expert: w1 rows, then w3 rows
  WeightView down;
};
struct ExpertBankView {
  int32_t num_experts = 0;
  int64_t hidden = 0, inner = 0, padded_inner = 0;
  ExpertView routed, shared;  // `routed`: expert 0
  int64_t gate_up_bytes = 0, gate_up_scale_bytes = 0, down_bytes = 0, down_scale_bytes = 0;  // from expert to expert
};
// The products too, where experts are few and inputs short: no LaunchMatMul before it.
bool IsSmallRouter(const WeightView& gate);
void LaunchSmallRoute(cudaStream_t stream, const device::RouterArgs& args, const WeightView& gate, const InputView& x, int64_t rows);
void LaunchRouteChoice(cudaStream_t stream, const device::RouterArgs& args, int num_experts, int64_t rows);
// A small router whose input is float32, in the same kernel as the experts' first product (x.values null: none).
struct RoutePart {
  device::RouterArgs args;
  WeightView gate;
  InputView x;
};
// act: [rows * (num_chosen + 1), padded_inner] floats of scratch.
void LaunchExperts(cudaStream_t stream, const device::Arithmetic& a, const ExpertBankView& bank, const device::ExpertArgs& args,
                   const InputView& x, int64_t rows, float* act, F out, const RoutePart& route);

}  // namespace deepinfer::cuda
