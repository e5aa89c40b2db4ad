// SPDX-License-Identifier: Apache-2.0
//
// Weight handles of the NVIDIA backend. Weights keep their stored width: FP4 stays 4 bits, FP8 8 bits, with their scales.
#pragma once

#include <memory>
#include <vector>

#include "backends/cuda/ops/launch.h"
#include "device/device.h"

namespace deepinfer::cuda {

class CudaMatrix final : public device::Matrix {
 public:
  CudaMatrix(int64_t rows, int64_t cols) : Matrix(rows, cols) {}
  WeightView view;
  device::Buffer data, scale;
};

class CudaTable final : public device::Table {
 public:
  ~CudaTable() override;
  TableView view;
  device::Buffer data, scale;              // empty when the GPU reads the host's memory
  std::vector<void*> registered;           // host memory pinned for that
};

class CudaInput final : public device::Input {
 public:
  InputView view;
  int64_t cols = 0;
  device::Buffer own;  // where the values are not those of the activation
};

class CudaExpertBank final : public device::ExpertBank {
 public:
  ExpertBankView view;
  device::Buffer gate_up, gate_up_scale, down, down_scale;
  device::Buffer shared_gate_up, shared_gate_up_scale, shared_down, shared_down_scale;
};

}  // namespace deepinfer::cuda
