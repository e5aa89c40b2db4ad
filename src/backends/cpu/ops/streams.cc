// SPDX-License-Identifier: Apache-2.0
//
// Ops on the residual streams: embedding, Engram injection, hyper-connections (mHC).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/cpu_weights.h"

namespace deepinfer::cpu {

namespace {

inline float Sigmoid(float v) { return 1.0f / (1.0f + std::exp(-v)); }

// exp(a) normalised by rows, plus eps: what the alternating normalisations of model.md 4.1 start from. In place.
void RowSoftmax(float* c, int m, float eps) {
  for (int j = 0; j < m; ++j) {
    float* row = c + j * m;
    float top = row[0];
    for (int k = 1; k < m; ++k) top = std::max(top, row[k]);
    float sum = 0;
    for (int k = 0; k < m; ++k) sum += row[k] = std::exp(row[k] - top);
    for (int k = 0; k < m; ++k) row[k] = row[k] / sum + eps;
  }
}

}  // namespace

void CpuDevice::Embed(const Arithmetic& a, const device::Table& table, const int32_t* ids, const int32_t* image_row,
                      const float* image_embeds, int64_t rows, int streams, int64_t hidden, Act trunk) {
  const auto& t = static_cast<const CpuTable&>(table);
  const size_t row_bytes = static_cast<size_t>(hidden) * sizeof(float);
  ForRows(rows, hidden / 4 + 50, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* out = Row(trunk, i);
      if (image_row != nullptr && image_row[i] >= 0) {
        const float* from = image_embeds + image_row[i] * hidden;
        if (a.round_bf16) {
          row_ops_.round_bf16(from, hidden, out);
        } else {
          std::memcpy(out, from, row_bytes);
        }
      } else {
        t.DecodeRow(row_ops_, ids[i], out);
      }
      for (int j = 1; j < streams; ++j) std::memcpy(out + j * hidden, out, row_bytes);
    }
  });
}

void CpuDevice::GatherRows(const Arithmetic& a, const device::Table& table, const int32_t* ids, int64_t rows, int columns,
                           int64_t width, Act out) {
  const auto& t = static_cast<const CpuTable&>(table);
  ForRows(rows, columns * (width / 4 + 50), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int c = 0; c < columns; ++c) {
        float* to = Row(out, i) + c * width;
        t.DecodeRow(row_ops_, ids[i * columns + c], to);
        if (a.round_bf16) row_ops_.round_bf16(to, width, to);
      }
    }
  });
}

void CpuDevice::CopyRows(Act in, const int32_t* rows, int64_t num_rows, int64_t width, Act out) {
  for (int64_t i = 0; i < num_rows; ++i)
    if (Row(out, i) != Row(in, rows[i])) std::memcpy(Row(out, i), Row(in, rows[i]), static_cast<size_t>(width) * sizeof(float));
}

void CpuDevice::CopyFloatRows(const float* in, const int32_t* rows, int64_t num_rows, int64_t width, float* out) {
  for (int64_t i = 0; i < num_rows; ++i)
    if (out + i * width != in + rows[i] * width)
      std::memcpy(out + i * width, in + rows[i] * width, static_cast<size_t>(width) * sizeof(float));
}

void CpuDevice::EngramInject(const Arithmetic& a, Act kv, const float* qk, const uint8_t* is_dead, int64_t rows, int streams,
                             int64_t hidden, float eps, Act trunk, float* gate_out) {
  const float inverse_root = 1.0f / std::sqrt(static_cast<float>(hidden));
  const float n = static_cast<float>(hidden);
  ForRows(rows, streams * hidden, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* value = Row(kv, t) + streams * hidden;
      for (int j = 0; j < streams; ++j) {
        float* x = Row(trunk, t) + j * hidden;
        const float* key = Row(kv, t) + j * hidden;
        float gate = 0;
        if (is_dead == nullptr || !is_dead[t]) {
          const float rx = 1.0f / std::sqrt(row_ops_.sum_squares(x, hidden) / n + eps);
          const float rk = 1.0f / std::sqrt(row_ops_.sum_squares(key, hidden) / n + eps);
          const float dot = row_ops_.dot3(x, qk + j * hidden, key, hidden) * (rx * rk) * inverse_root;
          gate = Sigmoid(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6f)), dot));
        }
        if (gate_out != nullptr) gate_out[t * streams + j] = gate;
        row_ops_.add_scaled(value, gate, hidden, a.round_bf16, x);
      }
    }
  });
}

void CpuDevice::HyperConnectionMix(const device::HyperConnectionSite& site, Act trunk, int64_t rows, float* pre, float* post,
                                   float* comb) {
  const int m = site.streams;
  const int outputs = m * (m + 2);
  const int64_t n = int64_t{m} * site.hidden;
  const float* fn = static_cast<const CpuMatrix*>(site.fn)->float_data();
  const float inverse_n = 1.0f / static_cast<float>(n);
  // What follows the products of one row; g holds them.
  const auto finish = [&](int64_t t, float* g) {
    const float rstd = 1.0f / std::sqrt(row_ops_.sum_squares(Row(trunk, t), n) * inverse_n + site.norm_eps);
    for (int o = 0; o < outputs; ++o) g[o] *= rstd;
    for (int j = 0; j < m; ++j) {
      pre[t * m + j] = Sigmoid(g[j] * site.scale[0] + site.base[j]) + site.eps;
      post[t * m + j] = 2.0f * Sigmoid(g[m + j] * site.scale[1] + site.base[m + j]);
    }
    float* c = comb + t * m * m;
    for (int i = 0; i < m * m; ++i) c[i] = g[2 * m + i] * site.scale[2] + site.base[2 * m + i];
    RowSoftmax(c, m, site.eps);
  };
  if (rows <= pool_->num_threads()) {
    // Decoding: the weights of a site are worth sharing.
    constexpr int kOutputsPerItem = 4;
    const int64_t items = (outputs + kOutputsPerItem - 1) / kOutputsPerItem;
    mix_products_.resize(static_cast<size_t>(rows * outputs));
    pool_->ParallelFor(rows * items, [&](int64_t item, int) {
      const int64_t t = item / items;
      const int first = static_cast<int>(item % items) * kOutputsPerItem;
      row_ops_.dots(Row(trunk, t), fn + first * n, n, std::min(kOutputsPerItem, outputs - first), mix_products_.data() + t * outputs + first);
    });
    for (int64_t t = 0; t < rows; ++t) finish(t, mix_products_.data() + t * outputs);
    row_ops_.sinkhorn(comb, rows, m, site.sinkhorn_iters, site.eps);
    return;
  }
  constexpr int64_t kBlock = 8;  // rows whose matrices are normalised together
  ForRows((rows + kBlock - 1) / kBlock, kBlock * (outputs * n / 12 + 500), [&](int64_t first_block, int64_t last_block) {
    float g[80];
    const int64_t begin = first_block * kBlock, end = std::min(last_block * kBlock, rows);
    for (int64_t t = begin; t < end; ++t) {
      row_ops_.dots(Row(trunk, t), fn, n, outputs, g);
      finish(t, g);
    }
    row_ops_.sinkhorn(comb + begin * m * m, end - begin, m, site.sinkhorn_iters, site.eps);
  });
}

void CpuDevice::CollapseNorm(const Arithmetic& a, Act trunk, const float* pre, int64_t rows, int streams, int64_t hidden,
                             const float* norm, float eps, Act collapsed, Act x) {
  ForRows(rows, (streams + 2) * hidden / 8 + 50, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* c = collapsed ? Row(collapsed, t) : Row(x, t);
      row_ops_.collapse(Row(trunk, t), pre + t * streams, streams, hidden, a.round_bf16, c);
      row_ops_.rms_norm(c, norm, hidden, eps, a.round_bf16, Row(x, t));
    }
  });
}

void CpuDevice::Expand(const Arithmetic& a, Act y, const float* post, const float* comb, int64_t rows, int streams,
                       int64_t hidden, Act trunk) {
  ForRows(rows, streams * hidden / 4 + 50, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      row_ops_.expand(Row(y, t), post + t * streams, comb + t * streams * streams, streams, hidden, a.round_bf16,
                      Row(trunk, t));
  });
}

void CpuDevice::StreamMean(const Arithmetic& a, Act trunk, int64_t rows, int streams, int64_t hidden, Act out) {
  ForRows(rows, streams * hidden / 8 + 50, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) row_ops_.stream_mean(Row(trunk, t), streams, hidden, a.round_bf16, Row(out, t));
  });
}

}  // namespace deepinfer::cpu
