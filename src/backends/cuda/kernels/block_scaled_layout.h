// SPDX-License-Identifier: Apache-2.0
//
// Layouts of the block-scaled products of Blackwell GPUs: e4m3 activations times e2m1 or e4m3 weights, one power of two (ue8m0)
// per row and 32 columns on both sides, float32 sums. What lies where, and every descriptor, is said here once: the kernels and
// the model of the instructions in tests/backends/cuda/layouts use the same functions. Plain C++, for host and device.
//
// Operand A is a tile of 128 tokens, operand B a tile of weight rows, K the columns, 128 of them a stage: four instructions of 32
// columns, whose four scales are one word of a row.
//
// Packed weights: panels of 128 rows, stage after stage, each [codes][512 bytes of scales]; what a stage needs is in one piece.
//   sm_100a  FP8: the image of shared memory, rows of 128 bytes, their eight pieces of 16 bytes swizzled (Swizzle128).
//            FP4: rows of 64 bytes as in the checkpoint. Every 8 bytes (16 codes) become the first half of a piece of 16 bytes
//            in shared memory; the second half is padding that the instruction asks for.
//   sm_120a  in the order of the lanes of mma.sync.m16n8k32, tiles of 8 rows. FP8: [tile][half of the columns][lane][step][b0, b1].
//            FP4: [tile][lane][step] words; the low nibbles are b0, the high ones b1 (ExpandFp4).
// Scales of 128 rows: sm_100a as tcgen05.cp copies them to tensor memory, sm_120a a word per row.
#pragma once

#include <cstdint>

#ifndef DI_HOST_DEVICE
#ifdef __CUDACC__
#define DI_HOST_DEVICE __host__ __device__
#else
#define DI_HOST_DEVICE
#endif
#endif

namespace deepinfer::cuda {

enum class BlockScaledForm { kSm100a, kSm120a };
enum class BlockScaledKind { kFp8, kFp4 };

inline constexpr int kBlockScaledTokens = 128;  // of a tile
inline constexpr int kPanelRows = 128;
inline constexpr int kStageCols = 128;
inline constexpr int kStepCols = 32;  // K of an instruction
inline constexpr int kStageSteps = kStageCols / kStepCols;
inline constexpr int kTokenStageBytes = kBlockScaledTokens * kStageCols;
inline constexpr int kScaleStageBytes = 128 * kStageSteps;  // of 128 rows

constexpr DI_HOST_DEVICE int PanelCodeBytes(BlockScaledKind kind) {
  return kPanelRows * kStageCols / (kind == BlockScaledKind::kFp4 ? 2 : 1);
}
constexpr DI_HOST_DEVICE int PanelStageBytes(BlockScaledKind kind) { return PanelCodeBytes(kind) + kScaleStageBytes; }

struct BlockScaledLayout {
  BlockScaledForm form = BlockScaledForm::kSm100a;
  BlockScaledKind kind = BlockScaledKind::kFp8;
  int rows = 0;  // of the matrix; padded to whole panels
  int cols = 0;

  constexpr DI_HOST_DEVICE bool valid() const { return rows > 0 && cols > 0 && cols % kStageCols == 0; }
  constexpr DI_HOST_DEVICE int panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  constexpr DI_HOST_DEVICE int stages() const { return cols / kStageCols; }
  constexpr DI_HOST_DEVICE int64_t panel_bytes() const { return int64_t{stages()} * PanelStageBytes(kind); }
  constexpr DI_HOST_DEVICE int64_t bytes() const { return panels() * panel_bytes(); }
};

// ---- pieces of 16 bytes and scales in shared memory ----

// Offset of column `k` of row `row` in rows of 128 bytes: 128-byte swizzle (the pieces of a row exchanged by its number in eight).
constexpr DI_HOST_DEVICE int Swizzle128(int row, int k) { return row * 128 + (((k / 16) ^ (row % 8)) * 16) + k % 16; }

// Offset of the scale of step `step` of row `row` of 128.
template <BlockScaledForm kForm>
constexpr DI_HOST_DEVICE int ScaleOffset(int row, int step) {
  return kForm == BlockScaledForm::kSm100a ? row % 32 * 16 + row / 32 * 4 + step : row * 4 + step;
}

// ---- packing ----

struct PanelElement {
  int row;   // of the panel
  int col;   // of the stage
};
// What byte `offset` of the codes of a stage holds; FP4: its low (0) or high (1) nibble.
constexpr DI_HOST_DEVICE PanelElement PackedElement(BlockScaledForm form, BlockScaledKind kind, int offset, int nibble) {
  if (form == BlockScaledForm::kSm100a) {
    if (kind == BlockScaledKind::kFp4) return {offset / 64, offset % 64 * 2 + nibble};
    const int row = offset / 128;
    return {row, ((offset % 128 / 16) ^ (row % 8)) * 16 + offset % 16};
  }
  const int word = offset / 4, byte = offset % 4;
  if (kind == BlockScaledKind::kFp4) {
    const int step = word % 4, lane = word / 4 % 32;
    return {word / 128 * 8 + lane / 4, step * 32 + nibble * 16 + lane % 4 * 4 + byte};
  }
  const int step = word / 128 % 2 * 2 + word % 4 / 2, lane = word / 4 % 32;
  return {word / 256 * 8 + lane / 4, step * 32 + word % 2 * 16 + lane % 4 * 4 + byte};
}
// What byte `offset` of the scales of a stage belongs to: col is the step.
constexpr DI_HOST_DEVICE PanelElement PackedScale(BlockScaledForm form, int offset) {
  if (form == BlockScaledForm::kSm100a) return {offset / 16 + offset % 16 / 4 * 32, offset % 4};
  return {offset / 4, offset % 4};
}
// Rows of two matrices of equal height in turns of eight: packed row -> source (0 or 1) and its row. Gate and up, so that the
// columns of a result have a gate eight places before its up.
struct InterleavedRow {
  int source;
  int row;
};
constexpr DI_HOST_DEVICE InterleavedRow Interleave(int packed_row) { return {packed_row / 8 % 2, packed_row / 16 * 8 + packed_row % 8}; }

// ---- tiles ----

struct TilePlace {
  int row_tile;
  int token_tile;
};
// Tile number `work` of a dense product: bands of row tiles by all token tiles, row tiles fastest, so that neighbours share tokens
// and weights in the L2 cache.
constexpr DI_HOST_DEVICE TilePlace TilePlaceOf(int work, int row_tiles, int token_tiles) {
  constexpr int kBand = 16;
  const int band = work / (kBand * token_tiles), in_band = work - band * kBand * token_tiles;
  const int left = row_tiles - band * kBand, height = left < kBand ? left : kBand;
  return {band * kBand + in_band % height, in_band / height};
}

// ---- sm_100a: descriptors of tcgen05 ----

// One tile: 128 tokens by two panels.
struct Sm100aTile {
  static constexpr int kRows = 2 * kPanelRows;
  static constexpr int kStages = 4;
  // Of a stage in shared memory, which begins at a multiple of 1024 bytes.
  static constexpr int kTokens = 0;
  static constexpr int kWeights = kTokenStageBytes;
  static constexpr int kTokenScales = kWeights + kRows * kStageCols;
  static constexpr int kWeightScales = kTokenScales + kScaleStageBytes;
  static constexpr int kStageBytes = (kWeightScales + 2 * kScaleStageBytes + 1023) / 1024 * 1024;
  // Columns of tensor memory: the sums, then the scales of each stage, which are free again when the stage is.
  static constexpr int kSumColumns = kRows;
  static constexpr int kScaleColumns = 16;  // 4 of the tokens, 8 of the weights
  static constexpr int kColumns = 512;      // a power of two
  static_assert(kSumColumns + kStages * kScaleColumns <= kColumns);
};

// Matrix in shared memory, K along rows: bits 0-13 address / 16, 16-29 leading offset / 16 (unused with a swizzle), 32-45 bytes
// from eight rows to the next eight / 16, 46-48 the constant 1, 61-63 swizzle (0 none, 2 128 bytes).
constexpr DI_HOST_DEVICE uint64_t SharedDescriptor(uint32_t address, int leading, int stride, int swizzle) {
  return (uint64_t{address >> 4} & 0x3fff) | (static_cast<uint64_t>(leading >> 4) & 0x3fff) << 16 |
         (static_cast<uint64_t>(stride >> 4) & 0x3fff) << 32 | uint64_t{1} << 46 | static_cast<uint64_t>(swizzle) << 61;
}
// Step `step` of a matrix of rows of 128 bytes at `address` (a multiple of 1024). FP4 takes as many bytes as FP8.
constexpr DI_HOST_DEVICE uint64_t OperandDescriptor(uint32_t address, int step) {
  return SharedDescriptor(address + static_cast<uint32_t>(step * kStepCols), 16, 1024, 2);
}
// Scales of 128 rows for tcgen05.cp.32x128b: 32 rows of 16 bytes, eight after eight.
constexpr DI_HOST_DEVICE uint64_t ScaleDescriptor(uint32_t address) { return SharedDescriptor(address, 0, 128, 0); }

// Instruction of kind::mxf8f6f4 with block scales: bits 4-5 byte of B's scale word, 7-9 and 10-12 formats of A and B (0 e4m3,
// 5 e2m1), 15 and 16 zero for K along rows, 17-22 N / 8, 23 ue8m0, 24-28 M / 16, 29-30 byte of A's scale word, 31 zero for K = 32.
constexpr DI_HOST_DEVICE uint32_t InstructionDescriptor(BlockScaledKind weights, int num_tokens, int num_rows, int step) {
  const uint32_t format_b = weights == BlockScaledKind::kFp4 ? 5 : 0;
  return static_cast<uint32_t>(step) << 4 | format_b << 10 | static_cast<uint32_t>(num_rows >> 3) << 17 | 1u << 23 |
         static_cast<uint32_t>(num_tokens >> 4) << 24 | static_cast<uint32_t>(step) << 29;
}

// What thread `thread` of 128 fetching ones copies of the tokens, turn after turn: eight threads share a row.
inline constexpr int kTokenTurns = kTokenStageBytes / 16 / 128;
struct TokenPiece {
  int row;
  int col;
};
constexpr DI_HOST_DEVICE TokenPiece TokenPieceOf(int thread, int turn) { return {thread / 8 + 16 * turn, thread % 8 * 16}; }
// ... and of FP4 weights: 8 bytes from offset `from` of panel `panel` to offset `to` of the weights in shared memory.
inline constexpr int kFp4Turns = 2 * PanelCodeBytes(BlockScaledKind::kFp4) / 8 / 128;
struct Fp4Piece {
  int panel;
  int from;
  int to;
};
constexpr DI_HOST_DEVICE Fp4Piece Fp4PieceOf(int thread, int turn) {
  const int panel = turn / (kFp4Turns / 2), row = thread / 8 + turn % (kFp4Turns / 2) * 16, piece = thread % 8;
  return {panel, row * 64 + piece * 8, Swizzle128(panel * kPanelRows + row, piece * 16)};
}

// All instructions of a stage at `smem`, in the order in which one thread issues them; `tmem`: first column of the sums.
// Engine: CopyScales(tensor memory address, descriptor), Multiply(sums, a, b, instruction, scales of a, of b, adds to the sums).
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <typename Engine>
DI_HOST_DEVICE void MultiplySm100aStage(Engine& engine, BlockScaledKind kind, uint32_t smem, uint32_t tmem, int stage, bool is_first) {
  using T = Sm100aTile;
  const uint32_t scales = tmem + static_cast<uint32_t>(T::kSumColumns + stage * T::kScaleColumns);
  engine.CopyScales(scales, ScaleDescriptor(smem + T::kTokenScales));
  engine.CopyScales(scales + 4, ScaleDescriptor(smem + T::kWeightScales));
  engine.CopyScales(scales + 8, ScaleDescriptor(smem + T::kWeightScales + kScaleStageBytes));
  for (int step = 0; step < kStageSteps; ++step) {
    engine.Multiply(tmem, OperandDescriptor(smem + T::kTokens, step), OperandDescriptor(smem + T::kWeights, step),
                    InstructionDescriptor(kind, kBlockScaledTokens, T::kRows, step), scales, scales + 4, !is_first || step > 0);
  }
}

// ---- sm_120a: registers of mma.sync.m16n8k32 ----

// One tile: 128 tokens by one panel, 4 x 2 warps of 32 tokens by 64 rows.
template <BlockScaledKind kKind>
struct Sm120aTile {
  static constexpr int kWarps = 8;
  static constexpr int kStages = 3;
  static constexpr int kTokens = 0;
  static constexpr int kWeights = kTokenStageBytes;  // codes and scales, as packed
  static constexpr int kWeightScales = kWeights + PanelCodeBytes(kKind);
  static constexpr int kTokenScales = kWeightScales + kScaleStageBytes;
  static constexpr int kStageBytes = kTokenScales + kScaleStageBytes;
  // The sums afterwards, in the same memory: rows of a token.
  static constexpr int kSumStride = kPanelRows + 4;
  static constexpr int kBytes = kStages * kStageBytes;
  static_assert(kBlockScaledTokens * kSumStride * 4 <= kBytes && kBytes <= 99 * 1024);
};

// Offset among the tokens of the 16 bytes whose address lane `lane` gives to ldmatrix.x4 for 16 tokens from `first_token` on.
constexpr DI_HOST_DEVICE int TokenOperandOffset(int lane, int first_token, int step) {
  return Swizzle128(first_token + lane / 8 % 2 * 8 + lane % 8, step * 32 + lane / 16 * 16);
}
// Row of 16 (A) and of 8 (B) whose scale word a lane holds; byte `step` of it counts (byte-id = step, thread-id = 0).
constexpr DI_HOST_DEVICE int TokenScaleRow(int lane) { return lane / 4 + lane % 2 * 8; }
constexpr DI_HOST_DEVICE int WeightScaleRow(int lane) { return lane / 4; }
// Offset among the codes of the 16 bytes of a lane: FP4 of all four steps, FP8 of steps 2 * half and 2 * half + 1.
constexpr DI_HOST_DEVICE int Fp4OperandOffset(int lane, int tile) { return (tile * 32 + lane) * 16; }
constexpr DI_HOST_DEVICE int Fp8OperandOffset(int lane, int tile, int half) { return ((tile * 2 + half) * 32 + lane) * 16; }
// e2m1 codes lie in bits 2 to 5 of an operand's bytes.
constexpr DI_HOST_DEVICE uint32_t ExpandFp4(uint32_t word, int reg) {
  return (reg == 0 ? word << 2 : word >> 2) & 0x3c3c3c3cu;
}

}  // namespace deepinfer::cuda
