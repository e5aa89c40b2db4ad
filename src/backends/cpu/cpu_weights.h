// SPDX-License-Identifier: Apache-2.0
//
// Weight handles of the CPU backend: packed matrices, tables read in place, the experts of a layer.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "backends/cpu/kernels/matmul.h"
#include "backends/cpu/kernels/moe.h"
#include "backends/cpu/row_ops.h"
#include "device/device.h"

namespace deepinfer::cpu {

class CpuMatrix final : public device::Matrix {
 public:
  CpuMatrix(int64_t rows, int64_t cols, PackedMatrix packed) : Matrix(rows, cols), packed_(std::move(packed)) {}
  // A float32 matrix, used in place where the checkpoint's mapping is aligned.
  CpuMatrix(int64_t rows, int64_t cols, const void* floats) : Matrix(rows, cols) {
    if (reinterpret_cast<uintptr_t>(floats) % alignof(float) == 0) {
      float_data_ = static_cast<const float*>(floats);
      return;
    }
    copy_.resize(static_cast<size_t>(rows * cols));
    std::memcpy(copy_.data(), floats, copy_.size() * sizeof(float));
    float_data_ = copy_.data();
  }

  const PackedMatrix& packed() const { return packed_; }
  // Row-major values of a float32 matrix: hyper-connection mixes use them as they are.
  const float* float_data() const { return float_data_; }

 private:
  PackedMatrix packed_;
  std::vector<float> copy_;
  const float* float_data_ = nullptr;
};

class CpuTable final : public device::Table {
 public:
  explicit CpuTable(const device::HostMatrix& source) : source_(source) {}
  // float32 values of one row, not rounded.
  void DecodeRow(const RowOps& ops, int64_t row, float* out) const {
    if (source_.format == device::WeightFormat::kBf16) {
      ops.decode_bf16(static_cast<const uint8_t*>(source_.host_data) + 2 * row * source_.cols, source_.cols, out);
    } else {
      ops.decode_key(device::KeyFormat::kMxFp8, static_cast<const uint8_t*>(source_.host_data) + row * source_.cols,
                     source_.host_scale + row * (source_.cols / 32), source_.cols, out);
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
  int streamed = -1;            // its number in the expert cache; -1: `experts` holds them
  std::vector<Expert> experts;
  Expert shared;
  std::vector<ExpertWeights> views;  // of `experts`; streamed: empty ones
  ExpertWeights shared_view;
};

}  // namespace deepinfer::cpu
