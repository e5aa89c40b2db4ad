// SPDX-License-Identifier: Apache-2.0
//
// The layouts of the block-scaled kernels (block_scaled_layout.h) against a model of their instructions: operands are packed,
// brought to shared memory and multiplied as the kernels do, the sums compared with a plain product within float32 rounding, for
// every shape of the released model, its first and its last tile.
#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cuda/kernels/block_scaled_layout.h"
#include "backends/cuda/kernels/kernel_set.h"
#include "block_scaled_model.h"
#include "core/dtypes.h"

namespace deepinfer::cuda {
namespace {

constexpr BlockScaledForm kForms[] = {BlockScaledForm::kSm100a, BlockScaledForm::kSm120a};
constexpr BlockScaledKind kKinds[] = {BlockScaledKind::kFp8, BlockScaledKind::kFp4};

struct ModelShape {
  const char* name;
  BlockScaledKind kind;
  int rows, cols;
  int groups;           // block-diagonal
  bool is_interleaved;  // gate and up
};
constexpr ModelShape kShapes[] = {
    {"wq_a and wkv", BlockScaledKind::kFp8, 1792, 5120, 1, false},
    {"wq_b", BlockScaledKind::kFp8, 32768, 1280, 1, false},
    {"wo_a", BlockScaledKind::kFp8, 8192, 4096, 8, false},
    {"wo_b", BlockScaledKind::kFp8, 5120, 8192, 1, false},
    {"index wq_b", BlockScaledKind::kFp8, 4096, 1280, 1, false},
    {"engram", BlockScaledKind::kFp8, 25600, 6144, 1, false},
    {"shared gate and up", BlockScaledKind::kFp8, 4608, 5120, 1, true},
    {"shared down", BlockScaledKind::kFp8, 5120, 2304, 1, false},
    {"expert gate and up", BlockScaledKind::kFp4, 4608, 5120, 1, true},
    {"expert down", BlockScaledKind::kFp4, 5120, 2304, 1, false},
    // Neither whole panels nor whole pairs of panels.
    {"padded", BlockScaledKind::kFp8, 272, 1280, 1, false},
    {"padded FP4", BlockScaledKind::kFp4, 400, 128, 1, false},
};

// Values by place, so that no whole matrix has to exist.
uint32_t Hash(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t h = a * 0x9e3779b1u ^ (b + 0x7f4a7c15u) * 0x85ebca6bu ^ c * 0xc2b2ae35u;
  h = (h ^ h >> 15) * 0x2c1b3c6du;
  h = (h ^ h >> 12) * 0x297a2d39u;
  return h ^ h >> 15;
}
uint8_t Fp8Code(uint32_t hash) {
  const uint8_t code = static_cast<uint8_t>(hash >> 8);
  return (code & 0x7f) == 0x7f ? static_cast<uint8_t>(code ^ 1) : code;  // no NaN
}

// Weights in the order of the packed rows.
struct Weights {
  ModelShape shape;
  BlockScaledLayout layout;

  Weights(BlockScaledForm form, const ModelShape& s) : shape(s), layout{form, s.kind, s.rows, s.cols} {}
  // Source and row that packed row `row` comes from, as one number.
  uint32_t Place(int row) const {
    if (!shape.is_interleaved) return static_cast<uint32_t>(row);
    const InterleavedRow r = Interleave(row);
    return static_cast<uint32_t>(r.source * (shape.rows / 2) + r.row);
  }
  uint8_t Code(int row, int col) const {
    if (row >= shape.rows) return 0;
    const uint32_t hash = Hash(Place(row), static_cast<uint32_t>(col), 1);
    return shape.kind == BlockScaledKind::kFp4 ? hash >> 8 & 15 : Fp8Code(hash);
  }
  uint8_t Scale(int row, int block) const {
    if (row >= shape.rows) return 127;
    const uint32_t place = shape.kind == BlockScaledKind::kFp4 ? Place(row) : Place(row) / 32;
    return static_cast<uint8_t>(118 + Hash(place, static_cast<uint32_t>(block), 2) % 12);
  }
  float At(int row, int col) const {
    return std::ldexp(shape.kind == BlockScaledKind::kFp4 ? E2M1ToFloat(Code(row, col)) : E4M3ToFloat(Code(row, col)), Scale(row, col / 32) - 127);
  }
  // Codes and scales of a stage of a panel, as LaunchBlockScaledPack writes them.
  std::vector<uint8_t> PackedStage(int panel, int stage) const {
    std::vector<uint8_t> out;
    for (int i = 0; i < PanelCodeBytes(shape.kind); ++i) {
      int byte = 0;
      for (int nibble = 0; nibble < (shape.kind == BlockScaledKind::kFp4 ? 2 : 1); ++nibble) {
        const PanelElement e = PackedElement(layout.form, shape.kind, i, nibble);
        byte |= Code(panel * kPanelRows + e.row, stage * kStageCols + e.col) << (4 * nibble);
      }
      out.push_back(static_cast<uint8_t>(byte));
    }
    for (int i = 0; i < kScaleStageBytes; ++i) {
      const PanelElement e = PackedScale(layout.form, i);
      out.push_back(Scale(panel * kPanelRows + e.row, stage * kStageSteps + e.col));
    }
    return out;
  }
};

struct Tokens {
  int count;
  uint8_t Code(int row, int col) const { return row < count ? Fp8Code(Hash(static_cast<uint32_t>(row), static_cast<uint32_t>(col), 3)) : 0; }
  uint8_t Scale(int row, int block) const {
    return row < count ? static_cast<uint8_t>(115 + Hash(static_cast<uint32_t>(row), static_cast<uint32_t>(block), 4) % 15) : 0;
  }
  float At(int row, int col) const { return std::ldexp(E4M3ToFloat(Code(row, col)), Scale(row, col / 32) - 127); }
};

struct Tile {
  int first_panel;
  int panels;
  int column;  // of the tokens
};

void FillTokens(const Tokens& tokens, const Tile& tile, int stage, BlockScaledForm form, uint8_t* codes, uint8_t* scales) {
  for (int thread = 0; thread < 128; ++thread) {
    for (int turn = 0; turn < kTokenTurns; ++turn) {
      const TokenPiece piece = TokenPieceOf(thread, turn);
      uint8_t* to = codes + Swizzle128(piece.row, piece.col);
      for (int i = 0; i < 16; ++i) to[i] = tokens.Code(piece.row, tile.column + stage * kStageCols + piece.col + i);
    }
    const int offset = form == BlockScaledForm::kSm100a ? ScaleOffset<BlockScaledForm::kSm100a>(thread, 0) : ScaleOffset<BlockScaledForm::kSm120a>(thread, 0);
    for (int i = 0; i < kStageSteps; ++i) scales[offset + i] = tokens.Scale(thread, tile.column / 32 + stage * kStageSteps + i);
  }
}

// [token][row of the tile]
std::vector<float> MultiplySm100a(const Weights& w, const Tokens& tokens, const Tile& tile) {
  using Shape = Sm100aTile;
  constexpr uint32_t kBase = 2048, kSums = 0;  // a stage need not begin at 0
  Tcgen05Model model(kBase + Shape::kStages * Shape::kStageBytes);
  for (int s = 0; s < w.layout.stages(); ++s) {
    const int stage = s % Shape::kStages;
    const uint32_t smem = kBase + static_cast<uint32_t>(stage * Shape::kStageBytes);
    uint8_t* at = &model.shared[smem];
    FillTokens(tokens, tile, s, BlockScaledForm::kSm100a, at + Shape::kTokens, at + Shape::kTokenScales);
    std::vector<uint8_t> panels[2];
    for (int i = 0; i < 2; ++i) {
      panels[i] = w.PackedStage(std::min(tile.first_panel + i, w.layout.panels() - 1), s);
      const int code_bytes = PanelCodeBytes(w.shape.kind);
      if (w.shape.kind == BlockScaledKind::kFp8) std::memcpy(at + Shape::kWeights + i * code_bytes, panels[i].data(), static_cast<size_t>(code_bytes));
      std::memcpy(at + Shape::kWeightScales + i * kScaleStageBytes, panels[i].data() + code_bytes, kScaleStageBytes);
    }
    if (w.shape.kind == BlockScaledKind::kFp4) {
      std::memset(at + Shape::kWeights, 0xff, Shape::kRows * kStageCols);  // whatever lies in the padding does not count
      for (int thread = 0; thread < 128; ++thread) {
        for (int turn = 0; turn < kFp4Turns; ++turn) {
          const Fp4Piece piece = Fp4PieceOf(thread, turn);
          std::memcpy(at + Shape::kWeights + piece.to, panels[piece.panel].data() + piece.from, 8);
        }
      }
    }
    MultiplySm100aStage(model, w.shape.kind, smem, kSums, stage, s == 0);
  }
  std::vector<float> sums;
  for (int token = 0; token < kBlockScaledTokens; ++token) {
    for (int row = 0; row < Shape::kRows; ++row) sums.push_back(model.Sum(token, static_cast<int>(kSums) + row));
  }
  return sums;
}

template <BlockScaledKind kKind>
std::vector<float> MultiplySm120a(const Weights& w, const Tokens& tokens, const Tile& tile) {
  using Shape = Sm120aTile<kKind>;
  std::vector<uint8_t> shared(Shape::kStageBytes);
  std::vector<float> sums(kBlockScaledTokens * kPanelRows);
  std::vector<std::array<std::array<float, 4>, 32>> c(8 * 16, std::array<std::array<float, 4>, 32>{});  // [16 tokens][8 rows]
  for (int s = 0; s < w.layout.stages(); ++s) {
    const std::vector<uint8_t> packed = w.PackedStage(tile.first_panel, s);
    std::memcpy(&shared[Shape::kWeights], packed.data(), packed.size());
    FillTokens(tokens, tile, s, BlockScaledForm::kSm120a, &shared[Shape::kTokens], &shared[Shape::kTokenScales]);
    for (int step = 0; step < kStageSteps; ++step) {
      for (int i = 0; i < 8 && 16 * i < tokens.count; ++i) {
        std::array<int, 32> address;
        std::array<uint32_t, 32> token_scales, row_scales;
        for (int lane = 0; lane < 32; ++lane) {
          const size_t l = static_cast<size_t>(lane);
          address[l] = TokenOperandOffset(lane, 16 * i, step);
          std::memcpy(&token_scales[l], &shared[static_cast<size_t>(Shape::kTokenScales + ScaleOffset<BlockScaledForm::kSm120a>(16 * i + TokenScaleRow(lane), 0))], 4);
        }
        const WarpRegisters<4> a = LoadMatrices(&shared[Shape::kTokens], address);
        for (int j = 0; j < 16; ++j) {
          WarpRegisters<2> b;
          for (int lane = 0; lane < 32; ++lane) {
            const size_t l = static_cast<size_t>(lane);
            std::memcpy(&row_scales[l], &shared[static_cast<size_t>(Shape::kWeightScales + ScaleOffset<BlockScaledForm::kSm120a>(8 * j + WeightScaleRow(lane), 0))], 4);
            std::array<uint32_t, 4> words;
            const int offset = kKind == BlockScaledKind::kFp4 ? Fp4OperandOffset(lane, j) : Fp8OperandOffset(lane, j, step / 2);
            std::memcpy(words.data(), &shared[static_cast<size_t>(Shape::kWeights + offset)], 16);
            for (int reg = 0; reg < 2; ++reg) {
              b[l][static_cast<size_t>(reg)] = kKind == BlockScaledKind::kFp4 ? ExpandFp4(words[static_cast<size_t>(step)], reg)
                                                                              : words[static_cast<size_t>(step % 2 * 2 + reg)];
            }
          }
          MultiplyWarp(0, kKind == BlockScaledKind::kFp4 ? 5 : 0, a, b, c[static_cast<size_t>(i * 16 + j)], token_scales, row_scales, step, 0);
        }
      }
    }
  }
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 16; ++j) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int r = 0; r < 4; ++r) {
          const int token = 16 * i + lane / 4 + r / 2 * 8, row = 8 * j + lane % 4 * 2 + r % 2;
          sums[static_cast<size_t>(token * kPanelRows + row)] = c[static_cast<size_t>(i * 16 + j)][static_cast<size_t>(lane)][static_cast<size_t>(r)];
        }
      }
    }
  }
  return sums;
}

void Compare(const std::vector<float>& sums, const Weights& w, const Tokens& tokens, const Tile& tile) {
  const int rows = tile.panels * kPanelRows, cols = w.shape.cols;
  std::vector<float> x, weights;
  for (int token = 0; token < tokens.count; ++token) {
    for (int k = 0; k < cols; ++k) x.push_back(tokens.At(token, tile.column + k));
  }
  int wrong = 0;
  for (int r = 0; r < rows && tile.first_panel * kPanelRows + r < w.shape.rows && wrong < 5; ++r) {
    weights.clear();
    for (int k = 0; k < cols; ++k) weights.push_back(w.At(tile.first_panel * kPanelRows + r, k));
    for (int token = 0; token < tokens.count && wrong < 5; ++token) {
      const float* xs = &x[static_cast<size_t>(token) * static_cast<size_t>(cols)];
      // Products are exact in float32; the plain sum is made in float64, so that only the rounding of the model's sums is seen.
      double sum = 0, size = 0;
      for (int k = 0; k < cols; ++k) {
        const double product = xs[k] * weights[static_cast<size_t>(k)];
        sum += product;
        size += std::fabs(product);
      }
      const float got = sums[static_cast<size_t>(token * rows + r)];
      if (!(std::fabs(got - sum) <= 1e-6 * size)) {
        ++wrong;
        ADD_FAILURE() << w.shape.name << ": token " << token << ", row " << r << " of panel " << tile.first_panel << ": " << got << ", expected " << sum;
      }
    }
  }
}

TEST(BlockScaledSm100a, MultipliesAsAPlainProductInEveryShape) {
  for (const ModelShape& shape : kShapes) {
    const Weights w(BlockScaledForm::kSm100a, shape);
    const int last = (w.layout.panels() - 1) / 2 * 2;
    for (const auto& [panel, tokens] : {std::pair{0, Tokens{17}}, std::pair{last, Tokens{3}}}) {
      const Tile tile{panel, 2, panel * kPanelRows / (shape.rows / shape.groups) * shape.cols};
      Compare(MultiplySm100a(w, tokens, tile), w, tokens, tile);
    }
  }
}

TEST(BlockScaledSm120a, MultipliesAsAPlainProductInEveryShape) {
  for (const ModelShape& shape : kShapes) {
    const Weights w(BlockScaledForm::kSm120a, shape);
    for (const auto& [panel, tokens] : {std::pair{0, Tokens{17}}, std::pair{w.layout.panels() - 1, Tokens{3}}}) {
      const Tile tile{panel, 1, panel * kPanelRows / (shape.rows / shape.groups) * shape.cols};
      Compare(shape.kind == BlockScaledKind::kFp4 ? MultiplySm120a<BlockScaledKind::kFp4>(w, tokens, tile)
                                                  : MultiplySm120a<BlockScaledKind::kFp8>(w, tokens, tile),
              w, tokens, tile);
    }
  }
}

TEST(BlockScaledTile, EveryRowAndColumnOfAFullTile) {
  for (const BlockScaledKind kind : kKinds) {
    const ModelShape shape{"full", kind, 256, 256, 1, false};
    const Tokens tokens{128};
    const Weights a(BlockScaledForm::kSm100a, shape), b(BlockScaledForm::kSm120a, shape);
    Compare(MultiplySm100a(a, tokens, {0, 2, 0}), a, tokens, {0, 2, 0});
    for (const int panel : {0, 1}) {
      const Tile tile{panel, 1, 0};
      Compare(kind == BlockScaledKind::kFp4 ? MultiplySm120a<BlockScaledKind::kFp4>(b, tokens, tile) : MultiplySm120a<BlockScaledKind::kFp8>(b, tokens, tile),
              b, tokens, tile);
    }
  }
}

TEST(BlockScaledLayout, PacksEveryElementOnce) {
  for (const BlockScaledForm form : kForms) {
    for (const BlockScaledKind kind : kKinds) {
      std::set<std::pair<int, int>> places, scales;
      for (int i = 0; i < PanelCodeBytes(kind); ++i) {
        for (int nibble = 0; nibble < (kind == BlockScaledKind::kFp4 ? 2 : 1); ++nibble) {
          const PanelElement e = PackedElement(form, kind, i, nibble);
          EXPECT_TRUE(e.row >= 0 && e.row < kPanelRows && e.col >= 0 && e.col < kStageCols);
          places.insert({e.row, e.col});
        }
      }
      EXPECT_EQ(places.size(), size_t{kPanelRows * kStageCols});
      for (int i = 0; i < kScaleStageBytes; ++i) {
        const PanelElement e = PackedScale(form, i);
        EXPECT_EQ(i, form == BlockScaledForm::kSm100a ? ScaleOffset<BlockScaledForm::kSm100a>(e.row, e.col) : ScaleOffset<BlockScaledForm::kSm120a>(e.row, e.col));
        scales.insert({e.row, e.col});
      }
      EXPECT_EQ(scales.size(), size_t{kScaleStageBytes});
    }
  }
}

TEST(BlockScaledLayout, GateLiesEightBeforeItsUp) {
  for (int channel = 0; channel < 64; ++channel) {
    const int packed = channel / 8 * 16 + channel % 8;
    EXPECT_EQ(Interleave(packed).source, 0);
    EXPECT_EQ(Interleave(packed + 8).source, 1);
    EXPECT_EQ(Interleave(packed).row, channel);
    EXPECT_EQ(Interleave(packed + 8).row, channel);
  }
}

TEST(BlockScaledLayout, EveryTileHasOnePlace) {
  for (const auto& [row_tiles, token_tiles] : {std::pair{1, 1}, std::pair{16, 3}, std::pair{17, 2}, std::pair{100, 32}, std::pair{7, 5}}) {
    std::set<std::pair<int, int>> places;
    for (int work = 0; work < row_tiles * token_tiles; ++work) {
      const TilePlace place = TilePlaceOf(work, row_tiles, token_tiles);
      EXPECT_TRUE(place.row_tile >= 0 && place.row_tile < row_tiles && place.token_tile >= 0 && place.token_tile < token_tiles);
      places.insert({place.row_tile, place.token_tile});
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(row_tiles * token_tiles));
  }
}

TEST(BlockScaledDescriptors, HaveTheBitsOfTheInstructionSet) {
  // M = 128, N = 128, e4m3 times e2m1, ue8m0 scales, K along rows.
  EXPECT_EQ(InstructionDescriptor(BlockScaledKind::kFp4, 128, 128, 0), 0x08a01400u);
  EXPECT_EQ(InstructionDescriptor(BlockScaledKind::kFp4, 128, 128, 3), 0x08a01400u | 3u << 29 | 3u << 4);
  EXPECT_EQ(InstructionDescriptor(BlockScaledKind::kFp8, 128, 256, 1), 1u << 27 | 1u << 23 | 32u << 17 | 1u << 29 | 1u << 4);
  // Address 0x4000, 1024 bytes between groups of eight rows, version 1, 128-byte swizzle.
  EXPECT_EQ(OperandDescriptor(0x4000, 0), uint64_t{2} << 61 | uint64_t{1} << 46 | uint64_t{64} << 32 | uint64_t{1} << 16 | 0x400);
  EXPECT_EQ(OperandDescriptor(0x4000, 3), OperandDescriptor(0x4000, 0) + 6);
  EXPECT_EQ(ScaleDescriptor(0xc000), uint64_t{1} << 46 | uint64_t{8} << 32 | 0xc00);
}

TEST(BlockScaledTile, FitsTheMachine) {
  static_assert(Sm100aTile::kStages * Sm100aTile::kStageBytes <= 225 * 1024);
  static_assert(Sm100aTile::kStageBytes % 1024 == 0 && Sm100aTile::kWeights % 1024 == 0, "a swizzle repeats after 1024 bytes");
  static_assert(Sm120aTile<BlockScaledKind::kFp8>::kBytes <= 99 * 1024 && Sm120aTile<BlockScaledKind::kFp4>::kBytes <= 99 * 1024);
  for (const ModelShape& s : kShapes) {
    const BlockScaledLayout layout{BlockScaledForm::kSm100a, s.kind, s.rows, s.cols};
    EXPECT_TRUE(layout.valid()) << s.name;
    EXPECT_EQ(layout.panel_bytes() % 16, 0) << s.name;
  }
}

TEST(KernelSetOf, NamesOnlyWhatAGpuHasCodeFor) {
  EXPECT_TRUE(KernelSetOf(9, 0).has_wgmma);
  EXPECT_FALSE(KernelSetOf(9, 0).has_block_scaled);
  for (const auto& [major, minor] : {std::pair{10, 0}, std::pair{12, 0}}) {
    EXPECT_FALSE(KernelSetOf(major, minor).has_wgmma);
    EXPECT_TRUE(KernelSetOf(major, minor).has_block_scaled);
  }
  EXPECT_FALSE(KernelSetOf(12, 0).has_stream) << "99 KiB of shared memory";
  for (const auto& [major, minor] : {std::pair{8, 0}, std::pair{8, 9}, std::pair{10, 3}, std::pair{11, 0}, std::pair{12, 1}})
    EXPECT_EQ(KernelSetOf(major, minor), KernelSet{});
}

}  // namespace
}  // namespace deepinfer::cuda
