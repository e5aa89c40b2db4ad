// SPDX-License-Identifier: Apache-2.0
//
// Weight handles of the NVIDIA backend. Weights keep their stored width: FP4 stays 4 bits, FP8 8 bits, with their scales.
#pragma once

#include <memory>
#include <vector>

#include "backends/cuda/kernels/dense.h"
#include "backends/cuda/kernels/experts.h"
#include "backends/cuda/ops/launch.h"
#include "device/device.h"

namespace deepinfer::cuda {

// A matrix in the form of kernels/; empty where those do not serve it.
struct PackedMatrix {
  PackedLayout layout;
  device::Buffer data;
  void* workspace = nullptr;  // of DenseArgs
  bool is_there() const { return data.data() != nullptr; }
};

// Either form, never both.
class CudaMatrix final : public device::Matrix {
 public:
  CudaMatrix(int64_t rows, int64_t cols) : Matrix(rows, cols) {}
  WeightView view;
  device::Buffer data, scale;
  PackedMatrix packed;
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
  device::Buffer own;   // where the values are not those of the activation
  // Float32 values that are exact in bf16, made when a product asks for them.
  mutable device::Buffer bf16;
  mutable bool has_bf16 = false;
};

class CudaExpertBank final : public device::ExpertBank {
 public:
  ExpertBankView view;
  device::Buffer gate_up, gate_up_scale, down, down_scale;
  device::Buffer shared_gate_up, shared_gate_up_scale, shared_down, shared_down_scale;
  // The form of kernels/: all experts one after another, and where each begins (device array).
  bool is_packed = false;
  device::Buffer packed_gate_up, packed_down, pointers;
  PackedMatrix packed_shared_gate_up, packed_shared_down;
  const uint8_t* const* gate_up_of() const { return pointers.as<const uint8_t*>(); }
  const uint8_t* const* down_of() const { return pointers.as<const uint8_t*>() + view.num_experts; }
};

}  // namespace deepinfer::cuda
