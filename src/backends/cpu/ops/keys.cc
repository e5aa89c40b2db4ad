// SPDX-License-Identifier: Apache-2.0
//
// Rotation, and the keys that go into the caches.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/cpu_device.h"

namespace deepinfer::cpu {

void CpuDevice::RopeTable(const int32_t* positions, int64_t count, const float* inv_freq, int rope_dim, float* table) {
  const int half = rope_dim / 2;
  ForRows(count, half * 30, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* cos = table + i * rope_dim;
      const float p = static_cast<float>(positions[i]);
      for (int k = 0; k < half; ++k) {
        const float angle = p * inv_freq[k];
        cos[k] = std::cos(angle);
        cos[half + k] = std::sin(angle);
      }
    }
  });
}

void CpuDevice::Rope(const Arithmetic& a, Act x, int64_t rows, int heads, int head_dim, int rope_dim, const float* table) {
  ForRows(rows, heads * (rope_dim / 2 + 10), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* cos = table + t * rope_dim;
      for (int h = 0; h < heads; ++h)
        row_ops_.rotate(Row(x, t) + (h + 1) * head_dim - rope_dim, rope_dim, cos, cos + rope_dim / 2, false, a.round_bf16);
    }
  });
}

void CpuDevice::IndexQuery(const Arithmetic& a, Act x, int64_t rows, int heads, int dim, int rope_dim, const float* table) {
  ForRows(rows, heads * dim, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* cos = table + t * rope_dim;
      for (int h = 0; h < heads; ++h)
        row_ops_.rotate(Row(x, t) + (h + 1) * dim - rope_dim, rope_dim, cos, cos + rope_dim / 2, false, a.round_bf16);
      if (a.quantize) row_ops_.fake_fp4_pow2(Row(x, t), int64_t{heads} * dim, Row(x, t));
    }
  });
}

void CpuDevice::WindowKeys(const Arithmetic& a, Act raw, const float* norm, float eps, int64_t rows, int head_dim,
                           int rope_dim, const float* table, Act keys) {
  ForRows(rows, head_dim, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* cos = table + t * rope_dim;
      float* key = Row(keys, t);
      row_ops_.rms_norm(Row(raw, t), norm, head_dim, eps, a.round_bf16, key);
      row_ops_.rotate(key + head_dim - rope_dim, rope_dim, cos, cos + rope_dim / 2, false, a.round_bf16);
      if (a.quantize) row_ops_.fake_fp8(key, head_dim, key);
    }
  });
}

void CpuDevice::StoreWindow(const device::Step& step, const device::WindowRing& ring, int head_dim, Act keys) {
  const int64_t record = device::KeyRecordBytes(ring.format, head_dim);
  const int64_t data_bytes = device::KeyDataBytes(ring.format, head_dim);
  for (int s = 0; s < step.num_sequences; ++s) {
    const device::SequenceRows& rows = step.sequences[s];
    const int stored = std::min(rows.num_rows, ring.rows);
    ForRows(stored, head_dim / 2, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t r = rows.num_rows - stored + i;
        uint8_t* to = rows.state + ring.offset + (rows.start + r) % ring.rows * record;
        row_ops_.encode_key(ring.format, Row(keys, rows.row_begin + r), head_dim, to, to + data_bytes);
      }
    });
  }
}

void CpuDevice::PoolPairs(const Arithmetic& a, const device::Step& step, const float* products, int head_dim,
                          int64_t ring_offset, int ring_rows, const device::NewGroup* groups, int64_t num_groups, Act latent) {
  const int64_t width = 2 * int64_t{head_dim};  // score | value
  ForRows(num_groups, head_dim * 10, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const device::NewGroup& group = groups[g];
      const device::SequenceRows& rows = step.sequences[group.sequence];
      const float* second = products + group.last_row * width;
      const float* first = group.last_row > rows.row_begin
                               ? second - width
                               : reinterpret_cast<const float*>(rows.state + ring_offset) + group.position % ring_rows * width;
      float* out = Row(latent, g);
      for (int d = 0; d < head_dim; ++d) {
        const float top = std::max(first[d], second[d]);
        const float w0 = std::exp(first[d] - top), w1 = std::exp(second[d] - top);
        const float sum = w0 + w1;
        out[d] = first[head_dim + d] * (w0 / sum) + second[head_dim + d] * (w1 / sum);
      }
      if (a.round_bf16) row_ops_.round_bf16(out, head_dim, out);
    }
  });
  for (int s = 0; s < step.num_sequences; ++s) {
    const device::SequenceRows& rows = step.sequences[s];
    float* ring = reinterpret_cast<float*>(rows.state + ring_offset);
    for (int r = std::max(0, rows.num_rows - ring_rows); r < rows.num_rows; ++r)
      std::memcpy(ring + (rows.start + r) % ring_rows * width, products + (rows.row_begin + r) * width,
                  static_cast<size_t>(width) * sizeof(float));
  }
}

void CpuDevice::StoreCompressed(const Arithmetic& a, const device::KeyCache& cache, Act latent,
                                const device::NewGroup* groups, int64_t num_groups, int rope_dim, const float* table,
                                Act trace_key) {
  const int64_t n = cache.head_dim;
  const int64_t data_bytes = device::KeyDataBytes(cache.main_format, n);
  const int64_t record = device::KeyRecordBytes(cache.main_format, n);
  ForRows(num_groups, n * 2, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const float* cos = table + g * rope_dim;
      float* key = Row(latent, g);
      row_ops_.rotate(key + n - rope_dim, rope_dim, cos, cos + rope_dim / 2, false, a.round_bf16);
      if (a.quantize && cache.main_format == device::KeyFormat::kMxFp8) row_ops_.fake_fp8(key, n, key);
      uint8_t* to = cache.pool + groups[g].block * cache.block_stride + cache.main_offset + groups[g].entry * record;
      row_ops_.encode_key(cache.main_format, key, n, to, to + data_bytes);
      if (cache.main_format == device::KeyFormat::kFp4E4m3) row_ops_.decode_key(cache.main_format, to, to + data_bytes, n, key);
      if (trace_key) std::memcpy(Row(trace_key, g), key, static_cast<size_t>(n) * sizeof(float));
    }
  });
}

void CpuDevice::StoreIndexKeys(const Arithmetic& a, const device::KeyCache& cache, Act raw, const float* norm, float eps,
                               const device::NewGroup* groups, int64_t num_groups, int rope_dim, const float* table,
                               Act trace_key) {
  const int64_t n = cache.index_dim;
  const int64_t data_bytes = device::KeyDataBytes(cache.index_format, n);
  const int64_t scale_bytes = device::KeyScaleBytes(cache.index_format, n);
  ForRows(num_groups, n * 2, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const float* cos = table + g * rope_dim;
      float* key = Row(raw, g);
      row_ops_.rms_norm(key, norm, n, eps, a.round_bf16, key);
      row_ops_.rotate(key + n - rope_dim, rope_dim, cos, cos + rope_dim / 2, false, a.round_bf16);
      if (a.quantize) row_ops_.fake_fp4_pow2(key, n, key);
      uint8_t* region = cache.pool + groups[g].block * cache.block_stride + cache.index_offset;
      row_ops_.encode_key(cache.index_format, key, n, region + groups[g].entry * data_bytes,
                          region + cache.entries_per_block * data_bytes + groups[g].entry * scale_bytes);
      if (trace_key) std::memcpy(Row(trace_key, g), key, static_cast<size_t>(n) * sizeof(float));
    }
  });
}

}  // namespace deepinfer::cpu
