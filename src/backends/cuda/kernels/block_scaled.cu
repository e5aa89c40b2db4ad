// SPDX-License-Identifier: Apache-2.0
//
// Block-scaled products: packing of weights, quantisation of inputs, and the way to the kernels of an architecture.
#include "backends/cuda/kernels/block_scaled.h"

#include "backends/cuda/kernels/block_scaled.cuh"
#include "backends/cuda/kernels/launch.h"

namespace deepinfer::cuda {
namespace {

struct PackArgs {
  BlockScaledLayout layout;
  PackSource sources[4];
  int num_sources;
  bool is_interleaved;
  uint8_t* out;
};

struct SourceRow {
  const PackSource* source;
  int row;  // -1: padding
};

__device__ SourceRow SourceRowOf(const PackArgs& a, int row) {
  if (row >= a.layout.rows) return {&a.sources[0], -1};
  if (a.is_interleaved) {
    const InterleavedRow r = Interleave(row);
    return {&a.sources[r.source], r.row};
  }
  int i = 0;
  while (row >= a.sources[i].rows) row -= a.sources[i++].rows;
  return {&a.sources[i], row};
}

// One block per panel and stage: codes, then scales. Padding rows are zeros with a scale of 1.
__global__ void PackKernel(PackArgs a) {
  const BlockScaledLayout& l = a.layout;
  const int panel = blockIdx.x / l.stages(), stage = blockIdx.x % l.stages();
  uint8_t* const to = a.out + panel * l.panel_bytes() + int64_t{stage} * PanelStageBytes(l.kind);
  const int code_bytes = PanelCodeBytes(l.kind);
  for (int i = threadIdx.x; i < code_bytes; i += blockDim.x) {
    uint32_t byte = 0;
    for (int nibble = 0; nibble < (l.kind == BlockScaledKind::kFp4 ? 2 : 1); ++nibble) {
      const PanelElement e = PackedElement(l.form, l.kind, i, nibble);
      const SourceRow r = SourceRowOf(a, panel * kPanelRows + e.row);
      if (r.row < 0) continue;
      const int64_t at = int64_t{r.row} * l.cols + stage * kStageCols + e.col;
      byte |= l.kind == BlockScaledKind::kFp4 ? (r.source->data[at / 2] >> (4 * (at & 1)) & 15u) << (4 * nibble) : r.source->data[at];
    }
    to[i] = static_cast<uint8_t>(byte);
  }
  for (int i = threadIdx.x; i < kScaleStageBytes; i += blockDim.x) {
    const PanelElement e = PackedScale(l.form, i);
    const SourceRow r = SourceRowOf(a, panel * kPanelRows + e.row);
    const int row = l.kind == BlockScaledKind::kFp4 ? r.row : r.row / 32;
    to[code_bytes + i] = r.row < 0 ? 127 : r.source->scale[int64_t{row} * (l.cols / 32) + stage * kStageSteps + e.col];
  }
}

// Eight lanes share a block of 32 values, four values each.
template <typename T>
__global__ void QuantizeKernel(const T* x, int64_t ldx, int64_t rows, int64_t cols, BlockScaledRows to) {
  DependencyLaunch();
  DependencyWait();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t block = i / 8, blocks = cols / 32;
  const bool is_valid = block < rows * blocks;
  const int64_t row = is_valid ? block / blocks : 0;
  const int64_t col = is_valid ? block % blocks * 32 + i % 8 * 4 : 0;
  float v[4];
  for (int j = 0; j < 4; ++j) v[j] = static_cast<float>(x[row * ldx + col + j]);
  float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
  for (int d = 4; d > 0; d /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
  const int e = QuantExponent(amax);
  if (!is_valid) return;
  uint32_t word = 0;
  for (int j = 0; j < 4; ++j) word |= uint32_t{Fp8Code(v[j], e)} << (8 * j);
  *reinterpret_cast<uint32_t*>(to.codes + row * cols + col) = word;
  if (i % 8 == 0) to.scales[row * blocks + col / 32] = static_cast<uint8_t>(e + 127);
}

cudaError_t LaunchProduct(const BlockScaledArgs& args, bool dependent, cudaStream_t stream) {
  switch (args.layout.form) {
    case BlockScaledForm::kSm100a: return LaunchBlockScaledSm100a(args, dependent, stream);
    case BlockScaledForm::kSm120a: return LaunchBlockScaledSm120a(args, dependent, stream);
  }
  return cudaErrorInvalidValue;
}

BlockScaledArgs ExpertProduct(const ExpertsArgs& args) {
  BlockScaledArgs a = {};
  a.num_jobs = args.plan.num_jobs;
  a.jobs = args.plan.jobs;
  a.slot_pair = args.plan.slot_pair;
  a.num_chosen = args.num_chosen;
  a.limit = args.swiglu_limit;
  a.round_bf16 = args.round_bf16;
  return a;
}

BlockScaledRows ExpertAct(const ExpertsArgs& args) {
  return BlockScaledRowsIn(args.act, int64_t{args.rows} * args.num_chosen, kExpertWidth);
}

}  // namespace

cudaError_t LaunchBlockScaledPack(const BlockScaledLayout& layout, RowOrder order, const PackSource* sources, int num_sources,
                                  uint8_t* out, cudaStream_t stream) {
  if (!layout.valid() || num_sources < 1 || num_sources > 4) return cudaErrorInvalidValue;
  const bool is_interleaved = order == RowOrder::kInterleaved;
  PackArgs args{layout, {}, num_sources, is_interleaved, out};
  int rows = 0;
  for (int i = 0; i < num_sources; ++i) {
    args.sources[i] = sources[i];
    rows += sources[i].rows;
  }
  if (rows != layout.rows) return cudaErrorInvalidValue;
  if (is_interleaved && (num_sources != 2 || sources[0].rows != sources[1].rows || sources[0].rows % 8 != 0)) return cudaErrorInvalidValue;
  PackKernel<<<static_cast<unsigned>(layout.panels() * layout.stages()), 256, 0, stream>>>(args);
  return cudaGetLastError();
}

int64_t BlockScaledRowsBytes(int64_t rows, int64_t cols) { return rows * cols + rows * (cols / 32); }

BlockScaledRows BlockScaledRowsIn(void* memory, int64_t rows, int64_t cols) {
  uint8_t* const codes = static_cast<uint8_t*>(memory);
  return {codes, codes + rows * cols};
}

cudaError_t LaunchBlockScaledQuantize(const void* x, bool is_float, int64_t ldx, int64_t rows, int64_t cols, const BlockScaledRows& to,
                                      bool dependent, cudaStream_t stream) {
  if (cols % 32 != 0) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const dim3 blocks(static_cast<unsigned>((rows * (cols / 32) * 8 + 255) / 256));
  if (is_float)
    return Launch(QuantizeKernel<float>, blocks, dim3(256), 0, stream, dependent, static_cast<const float*>(x), ldx, rows, cols, to);
  return Launch(QuantizeKernel<__nv_bfloat16>, blocks, dim3(256), 0, stream, dependent, static_cast<const __nv_bfloat16*>(x), ldx, rows,
                cols, to);
}

cudaError_t LaunchDenseBlockScaled(const BlockScaledLayout& layout, const DenseArgs& args, cudaStream_t stream) {
  if (!layout.valid() || layout.kind != BlockScaledKind::kFp8 || args.tokens < 0 || args.num_groups < 1) return cudaErrorInvalidValue;
  if (args.num_groups > 1 && layout.rows % (args.num_groups * 256) != 0) return cudaErrorInvalidValue;
  if (args.swiglu && (layout.rows % 64 != 0 || args.ldy % 2 != 0)) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  BlockScaledArgs a = {};
  a.layout = layout;
  a.weights = args.weights;
  a.tokens = args.tokens;
  a.token_tiles = (args.tokens + kBlockScaledTokens - 1) / kBlockScaledTokens;
  a.rows_per_group = args.num_groups > 1 ? layout.rows / args.num_groups : 0;
  a.input_cols = int64_t{layout.cols} * args.num_groups;
  const BlockScaledRows input = BlockScaledRowsIn(args.workspace, args.tokens, a.input_cols);
  a.codes = input.codes;
  a.scales = input.scales;
  a.output = args.swiglu ? BlockScaledOutput::kSwiglu : BlockScaledOutput::kPlain;
  a.y = args.y;
  a.ldy = args.ldy;
  a.out = args.out;
  a.limit = args.swiglu_limit;
  a.round_bf16 = args.round_bf16;
  const cudaError_t error = LaunchBlockScaledQuantize(args.x, false, args.ldx, args.tokens, a.input_cols, input, args.dependent, stream);
  return error != cudaSuccess ? error : LaunchProduct(a, args.dependent, stream);
}

cudaError_t LaunchExpertGateUpBlockScaled(BlockScaledForm form, const ExpertsArgs& args, void* workspace, cudaStream_t stream) {
  if (args.form != ExpertForm::kWide || !args.fast || args.rows < 0) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const BlockScaledRows input = BlockScaledRowsIn(workspace, args.rows, kExpertHidden), act = ExpertAct(args);
  BlockScaledArgs a = ExpertProduct(args);
  a.layout = BlockScaledGateUpLayout(form);
  a.routing = args.weights;
  a.is_gate_up = true;
  a.codes = input.codes;
  a.scales = input.scales;
  a.input_cols = kExpertHidden;
  a.output = BlockScaledOutput::kSwigluCodes;
  a.y = act.codes;
  a.ldy = kExpertWidth;
  a.y_scales = act.scales;
  const cudaError_t error = LaunchBlockScaledQuantize(args.x, false, args.ldx, args.rows, kExpertHidden, input, args.dependent, stream);
  return error != cudaSuccess ? error : LaunchProduct(a, args.dependent, stream);
}

cudaError_t LaunchExpertDownBlockScaled(BlockScaledForm form, const ExpertsArgs& args, cudaStream_t stream) {
  if (args.form != ExpertForm::kWide || !args.fast || args.rows < 0) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const BlockScaledRows act = ExpertAct(args);
  BlockScaledArgs a = ExpertProduct(args);
  a.layout = BlockScaledDownLayout(form);
  a.codes = act.codes;
  a.scales = act.scales;
  a.input_cols = kExpertWidth;
  a.output = BlockScaledOutput::kPlain;
  a.y = args.y;
  a.ldy = kExpertHidden;
  a.out = args.round_bf16 ? OutputType::kBf16 : OutputType::kFloat;
  return LaunchProduct(a, args.dependent, stream);
}

}  // namespace deepinfer::cuda
