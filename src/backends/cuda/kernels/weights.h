// SPDX-License-Identifier: Apache-2.0
//
// Packed weights of the sm_90a kernels: a stream of bytes in the order in which sixteen warps consume it. Kinds: FP8 with a
// power of two per 32 x 32 tile, FP4 with a power of two per row and 32 columns, bf16. One layout serves the kernel for few
// rows (mma) and the one for many (wgmma with the weights in registers).
//
// A unit is `16 * row_tiles` rows of one segment of K (K itself, or a half of it). The segment is cut into `slices` slices of
// `groups` groups of 32 columns, row_tiles * slices = 16: one slice per warp. A slice consists of chunks of `chunk_groups`
// groups, what one copy brings. A chunk holds, group after group, 16 rows x 32 columns in the order of tensor-core lanes
// (lane 4g + t has rows g and g + 8 and of each 16 columns 2t, 2t + 1, 2t + 8, 2t + 9), then its scales:
//   FP4   8 bytes a lane: row g, row g + 8; [8][row pairs of groups] scale bytes, 126 above the checkpoint's
//   FP8   16 bytes a lane: step 0 rows g, g + 8, step 1 the same; two scale bytes a group (rows 0-7, 8-15), 120 above, padded
//         to 16
//   bf16  step by step 16 bytes a lane: the operand registers themselves
// Sums: columns ascending by 16 inside a slice (one accumulator), slices ascending, segments ascending.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#ifdef __CUDACC__
#define DI_HOST_DEVICE __host__ __device__
#else
#define DI_HOST_DEVICE
#endif

namespace deepinfer::cuda {

enum class PackedKind { kFp8 = 0, kFp4 = 1, kBf16 = 2 };

struct PackedLayout {
  PackedKind kind = PackedKind::kFp8;
  int rows = 0;       // of the matrix
  int cols = 0;
  int segments = 0;   // 0: this number of columns has no fast layout
  int slices = 0;
  int groups = 0;
  int chunk_groups = 0;
  int row_tiles = 0;

  DI_HOST_DEVICE bool valid() const { return segments > 0; }
  DI_HOST_DEVICE int units_per_segment() const { return (rows + 16 * row_tiles - 1) / (16 * row_tiles); }
  DI_HOST_DEVICE int units() const { return units_per_segment() * segments; }
  DI_HOST_DEVICE int chunk_bytes() const {
    switch (kind) {
      case PackedKind::kFp8: return chunk_groups * 512 + 16;
      case PackedKind::kFp4: return chunk_groups * 256 + 32 * ((chunk_groups + 1) / 2);
      case PackedKind::kBf16: return chunk_groups * 1024;
    }
    return 0;
  }
  DI_HOST_DEVICE int64_t unit_bytes() const { return int64_t{16} * (groups / chunk_groups) * chunk_bytes(); }
  DI_HOST_DEVICE int64_t bytes() const { return units() * unit_bytes(); }
};

// The layout of a matrix; not valid() when the kernels do not serve its number of columns (multiples of 16 rows are padded).
PackedLayout LayoutOf(PackedKind kind, int rows, int cols);

// How the rows of the packed matrix are taken from the sources.
enum class RowOrder {
  kStacked,     // source after source
  kInterleaved  // two sources of equal height: 8 rows of the first, 8 of the second, ... (gate and up)
};
struct PackSource {
  const uint8_t* data = nullptr;   // device: as in the checkpoint, row-major (types.h WeightFormat)
  const uint8_t* scale = nullptr;  // device
  int rows = 0;
};
// Packs up to four sources. FP4 scales above 2^1 and FP8 scales above 2^7 cannot be held: *error is set to 1 (device memory,
// zeroed by the caller; null = not wanted). out: layout.bytes(), 16-byte aligned.
cudaError_t LaunchPack(const PackedLayout& layout, RowOrder order, const PackSource* sources, int num_sources, uint8_t* out,
                       int* error, cudaStream_t stream);

}  // namespace deepinfer::cuda
