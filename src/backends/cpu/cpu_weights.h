// SPDX-License-Identifier: Apache-2.0
//
// Weight handles of the CPU backend: packed matrices, tables read in place, the experts of a layer.
#pragma once

#include <memory>
#include <vector>

#include "backends/cpu/kernels/matmul.h"
#include "backends/cpu/kernels/moe.h"
#include "backends/cpu/row_ops.h"
#include "device/device.h"

namespace deepinfer::cpu {

class CpuMatrix final : public device::Matrix {
 public:
  CpuMatrix(int64_t rows, int64_t cols, PackedMatrix packed, const float* float_data)
      : Matrix(rows, cols), packed_(std::move(packed)), float_data_(float_data) {}

  const PackedMatrix& packed() const { return packed_; }
  // Row-major values of a float32 matrix, read in place (hyper-connection mixes use them as they are).
  const float* float_data() const { return float_data_; }

 private:
  PackedMatrix packed_;
  const float* float_data_;
};

class CpuTable final : public device::Table {
 public:
  explicit CpuTable(const device::HostMatrix& source) : source_(source) {}
  // float32 values of one row, not rounded.
  void DecodeRow(const RowOps& ops, int64_t row, float* out) const {
    if (source_.format == device::WeightFormat::kBf16) {
      ops.decode_bf16(static_cast<const uint16_t*>(source_.host_data) + row * source_.cols, source_.cols, out);
    } else {
      ops.decode_key(device::KeyFormat::kMxFp8, static_cast<const uint8_t*>(source_.host_data) + row * source_.cols,
                     source_.host_scale + row * (source_.cols / 32), source_.cols, out, 16);
    }
  }

 private:
  device::HostMatrix source_;
};

class CpuInput final : public device::Input {
 public:
  PreparedActivations prepared;
};

class CpuExpertBank final : public device::ExpertBank {
 public:
  struct Expert {
    PackedMatrix gate_up;  // w1 and w3, tiles interleaved
    PackedMatrix down;
    ExpertWeights View() const { return {&gate_up, &down}; }
  };
  std::vector<Expert> experts;
  Expert shared;
  std::vector<ExpertWeights> views;  // of `experts`
  ExpertWeights shared_view;
};

}  // namespace deepinfer::cpu
