// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/weights.h"

#include "backends/cuda/kernels/weights.cuh"

namespace deepinfer::cuda {

PackedLayout LayoutOf(PackedKind kind, int rows, int cols) {
  PackedLayout layout;
  layout.kind = kind;
  layout.rows = rows;
  layout.cols = cols;
  layout.segments = 1;
  switch (cols) {
    case 1280: layout.slices = 4, layout.groups = 10; break;
    case 2304: layout.slices = 8, layout.groups = 9; break;
    case 4096: layout.slices = 16, layout.groups = 8; break;
    case 5120: layout.slices = 16, layout.groups = 10; break;
    case 6144: layout.slices = 16, layout.groups = 12; break;
    case 8192: layout.slices = 16, layout.groups = 8, layout.segments = 2; break;
    default: layout.segments = 0; return layout;
  }
  layout.row_tiles = kPackWarps / layout.slices;
  switch (kind) {
    case PackedKind::kFp8: layout.chunk_groups = layout.groups == 10 ? 5 : layout.groups == 8 ? 4 : 3; break;
    case PackedKind::kFp4: layout.chunk_groups = layout.groups; break;
    case PackedKind::kBf16: layout.chunk_groups = layout.groups == 9 ? 3 : 2; break;
  }
  return layout;
}

namespace {

struct PackArgs {
  PackedLayout layout;
  PackSource sources[4];
  int num_sources;
  bool interleaved;
  uint8_t* out;
  int* error;
};

struct Element {
  const PackSource* source;
  int row;  // of the source; -1: padding
};

__device__ Element RowOf(const PackArgs& a, int row) {
  if (a.interleaved) {
    const PackSource* s = &a.sources[(row / 8) & 1];
    const int r = row / 16 * 8 + row % 8;
    return {s, r < s->rows ? r : -1};
  }
  for (int i = 0; i < a.num_sources; ++i) {
    if (row < a.sources[i].rows) return {&a.sources[i], row};
    row -= a.sources[i].rows;
  }
  return {&a.sources[0], -1};
}

__device__ uint32_t CodeOf(const PackArgs& a, const Element& e, int col) {
  if (e.row < 0) return 0;
  const int64_t at = int64_t{e.row} * a.layout.cols + col;
  switch (a.layout.kind) {
    case PackedKind::kFp8: return e.source->data[at];
    case PackedKind::kFp4: return (e.source->data[at / 2] >> (4 * (col & 1))) & 15u;
    case PackedKind::kBf16: return reinterpret_cast<const uint16_t*>(e.source->data)[at];
  }
  return 0;
}

__device__ uint8_t BiasedScale(const PackArgs& a, const Element& e, int group) {
  const int bias = a.layout.kind == PackedKind::kFp4 ? 126 : 120;
  if (e.row < 0) return static_cast<uint8_t>(bias);
  const int row = a.layout.kind == PackedKind::kFp4 ? e.row : e.row / 32;
  const int scale = e.source->scale[int64_t{row} * (a.layout.cols / 32) + group] + bias;
  if (scale > 254) {
    if (a.error != nullptr) *a.error = 1;
    return 254;
  }
  return static_cast<uint8_t>(scale);
}

// One block per unit and slice, one warp per group (round robin).
__global__ void PackKernel(PackArgs a) {
  const PackedLayout& l = a.layout;
  const int unit = blockIdx.x / kPackWarps;
  const int slot = blockIdx.x % kPackWarps;  // the consuming warp
  const int slice = slot % l.slices;
  const int segment = unit / l.units_per_segment();
  const int row_tile = unit % l.units_per_segment() * l.row_tiles + slot / l.slices;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int chunk_bytes = l.chunk_bytes();
  const int num_chunks = l.groups / l.chunk_groups;
  uint8_t* base = a.out + (int64_t{unit} * kPackWarps + slot) * num_chunks * chunk_bytes;
  const Element rows[2] = {RowOf(a, row_tile * 16 + g), RowOf(a, row_tile * 16 + g + 8)};
  const int first_col = (segment * l.slices + slice) * l.groups * 32;
  for (int group = threadIdx.x / 32; group < l.groups; group += blockDim.x / 32) {
    uint8_t* chunk = base + group / l.chunk_groups * chunk_bytes;
    const int in_chunk = group % l.chunk_groups;
    const int col = first_col + group * 32;
    if (l.kind == PackedKind::kFp4) {
      uint32_t words[2] = {0, 0};
      for (int r = 0; r < 2; ++r) {
        for (int h = 0; h < 2; ++h) {
          uint32_t half = 0;
          for (int p = 0; p < 4; ++p) {
            const uint32_t c = CodeOf(a, rows[r], col + 16 * (p / 2) + 8 * (p % 2) + 2 * t + h);
            const uint32_t sign = c >> 3, magnitude = c & 7;
            if (p == 0) half |= sign << 15 | magnitude << 6;
            if (p == 1) half |= sign << 12 | magnitude << 3;
            if (p == 2) half |= sign << 9 | magnitude;
            if (p == 3) half |= sign << 14 | (magnitude >> 2) << 13 | (magnitude & 3) << 10;
          }
          words[r] |= half << (16 * h);
        }
      }
      *reinterpret_cast<uint2*>(chunk + in_chunk * 256 + lane * 8) = make_uint2(words[0], words[1]);
      if (t < 2) {
        const int scale_words = (l.chunk_groups + 1) / 2;
        uint8_t* scales = chunk + l.chunk_groups * 256 + g * scale_words * 4;
        scales[in_chunk * 2 + t] = BiasedScale(a, rows[t], col / 32);
        if ((l.chunk_groups & 1) && in_chunk == l.chunk_groups - 1) scales[in_chunk * 2 + 2 + t] = 0;
      }
    } else if (l.kind == PackedKind::kFp8) {
      uint32_t words[4] = {0, 0, 0, 0};
      for (int i = 0; i < 4; ++i) {
        for (int h = 0; h < 2; ++h) {
          const int k = col + 16 * (i / 2) + 2 * t + h;
          const uint32_t b0 = CodeOf(a, rows[i % 2], k), b1 = CodeOf(a, rows[i % 2], k + 8);
          const uint32_t m0 = b0 & 127, m1 = b1 & 127;
          words[i] |= ((b0 >> 7) << 15 | m0 << 4 | (b1 >> 7) << 11 | (m1 & 15) | (m1 >> 4) << 12) << (16 * h);
        }
      }
      *reinterpret_cast<uint4*>(chunk + in_chunk * 512 + lane * 16) = make_uint4(words[0], words[1], words[2], words[3]);
      if (lane == 0) {
        uint8_t* scales = chunk + l.chunk_groups * 512;
        for (int i = 0; i < 2; ++i) scales[2 * in_chunk + i] = BiasedScale(a, rows[i], col / 32);
        if (in_chunk == 0)
          for (int i = 2 * l.chunk_groups; i < 16; ++i) scales[i] = 0;
      }
    } else {
      for (int step = 0; step < 2; ++step) {
        uint32_t words[4];
        for (int i = 0; i < 4; ++i) {
          const int k = col + 16 * step + 8 * (i / 2) + 2 * t;
          words[i] = CodeOf(a, rows[i % 2], k) | CodeOf(a, rows[i % 2], k + 1) << 16;
        }
        *reinterpret_cast<uint4*>(chunk + in_chunk * 1024 + step * 512 + lane * 16) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

}  // namespace

cudaError_t LaunchPack(const PackedLayout& layout, RowOrder order, const PackSource* sources, int num_sources, uint8_t* out,
                       int* error, cudaStream_t stream) {
  if (!layout.valid() || num_sources < 1 || num_sources > 4) return cudaErrorInvalidValue;
  PackArgs args{layout, {}, num_sources, order == RowOrder::kInterleaved, out, error};
  int rows = 0;
  for (int i = 0; i < num_sources; ++i) {
    args.sources[i] = sources[i];
    rows += sources[i].rows;
    if (num_sources > 1 && sources[i].rows % 16 != 0) return cudaErrorInvalidValue;
  }
  if (rows != layout.rows || (order == RowOrder::kInterleaved && (num_sources != 2 || sources[0].rows != sources[1].rows)))
    return cudaErrorInvalidValue;
  PackKernel<<<static_cast<unsigned>(layout.units() * kPackWarps), 128, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace deepinfer::cuda
