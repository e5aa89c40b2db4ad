// SPDX-License-Identifier: Apache-2.0
//
// Weights on their way to the GPU.
#include "backends/cuda/cuda_weights.h"

#include <cstring>

#include <fmt/format.h>

#include "backends/cuda/cuda_device.h"

namespace deepinfer::cuda {

namespace {

using device::WeightFormat;

int64_t Padded(int64_t cols) { return (cols + 31) / 32 * 32; }

// Tables up to this share of the free memory are copied to the GPU.
constexpr int64_t kTableShare = 4;

}  // namespace

CudaTable::~CudaTable() {
  for (void* host : registered) cudaHostUnregister(host);
}

Result<device::Buffer> CudaDevice::UploadPadded(std::span<const device::HostMatrix> parts, int64_t padded_cols) {
  int64_t rows = 0;
  for (const auto& part : parts) rows += part.rows;
  const int64_t to_row = WeightRowBytes(parts[0].format, padded_cols), from_row = WeightRowBytes(parts[0].format, parts[0].cols);
  DI_ASSIGN_OR_RETURN(device::Buffer buffer, Allocate(rows * to_row));
  uint8_t* to = buffer.as<uint8_t>();
  for (const auto& part : parts) {
    if (to_row == from_row) {
      UploadLarge(to, part.host_data, part.rows * to_row);
    } else {
      cudaMemcpy2DAsync(to, static_cast<size_t>(to_row), part.host_data, static_cast<size_t>(from_row), static_cast<size_t>(from_row),
                        static_cast<size_t>(part.rows), cudaMemcpyHostToDevice, stream_);
      Check("weights");
    }
    to += part.rows * to_row;
  }
  return buffer;
}

Result<device::Buffer> CudaDevice::UploadScales(std::span<const device::HostMatrix> parts, int64_t padded_cols, int32_t& scale_shift) {
  scale_shift = 0;
  if (parts[0].host_scale == nullptr) return device::Buffer();
  const int64_t columns = padded_cols / 32;
  const bool is_tiled = parts[0].format == WeightFormat::kFp8Block32;
  bool starts_tiles = is_tiled;  // every part begins at a tile of the stack
  for (size_t i = 0; i + 1 < parts.size(); ++i) starts_tiles = starts_tiles && parts[i].rows % 32 == 0;
  std::vector<uint8_t> scales;
  for (const auto& part : parts) {
    const int64_t source_rows = is_tiled ? (part.rows + 31) / 32 : part.rows;
    if (!is_tiled || starts_tiles) {
      scales.insert(scales.end(), part.host_scale, part.host_scale + source_rows * columns);
      continue;
    }
    for (int64_t r = 0; r < part.rows; ++r)
      scales.insert(scales.end(), part.host_scale + r / 32 * columns, part.host_scale + (r / 32 + 1) * columns);
  }
  if (starts_tiles) scale_shift = 5;
  DI_ASSIGN_OR_RETURN(device::Buffer buffer, Allocate(static_cast<int64_t>(scales.size())));
  Upload(buffer.data(), scales.data(), static_cast<int64_t>(scales.size()));
  return buffer;
}

Result<std::unique_ptr<device::Matrix>> CudaDevice::CreateMatrix(std::span<const device::HostMatrix> parts) {
  int64_t rows = 0;
  for (const auto& part : parts) {
    if (part.cols != parts[0].cols || part.format != parts[0].format)
      return Internal(fmt::format("cannot stack matrices of {} and {} columns", parts[0].cols, part.cols));
    rows += part.rows;
  }
  auto matrix = std::make_unique<CudaMatrix>(rows, parts[0].cols);
  DI_RETURN_IF_ERROR(Pack(parts, RowOrder::kStacked, matrix->packed));
  if (matrix->packed.is_there()) return std::unique_ptr<device::Matrix>(std::move(matrix));
  WeightView& view = matrix->view;
  view.format = parts[0].format;
  view.rows = rows;
  // Hyper-connection weights are read as they are.
  view.padded_cols = view.format == WeightFormat::kF32 ? parts[0].cols : Padded(parts[0].cols);
  if (view.format == WeightFormat::kF32 && view.padded_cols % 4 != 0) view.padded_cols = Padded(parts[0].cols);
  DI_ASSIGN_OR_RETURN(matrix->data, UploadPadded(parts, view.padded_cols));
  DI_ASSIGN_OR_RETURN(matrix->scale, UploadScales(parts, view.padded_cols, view.scale_shift));
  view.data = matrix->data.as<uint8_t>();
  view.scale = matrix->scale.as<uint8_t>();
  DI_RETURN_IF_ERROR(TakeError());
  return std::unique_ptr<device::Matrix>(std::move(matrix));
}

Result<std::unique_ptr<device::Table>> CudaDevice::CreateTable(const device::HostMatrix& source) {
  if (source.format != WeightFormat::kBf16 && source.format != WeightFormat::kFp8Row32)
    return Unimplemented("tables are bf16 or FP8 with a scale per 32 channels");
  auto table = std::make_unique<CudaTable>();
  table->view.format = source.format;
  table->view.cols = source.cols;
  const int64_t bytes = source.rows * WeightRowBytes(source.format, source.cols);
  const int64_t scale_bytes = source.host_scale != nullptr ? source.rows * (source.cols / 32) : 0;
  if (!source.is_volatile && (bytes + scale_bytes) <= free_bytes() / kTableShare) {
    DI_ASSIGN_OR_RETURN(table->data, Allocate(bytes));
    UploadLarge(table->data.data(), source.host_data, bytes);
    if (scale_bytes > 0) {
      DI_ASSIGN_OR_RETURN(table->scale, Allocate(scale_bytes));
      UploadLarge(table->scale.data(), source.host_scale, scale_bytes);
    }
    table->view.data = table->data.as<uint8_t>();
    table->view.scale = table->scale.as<uint8_t>();
    DI_RETURN_IF_ERROR(TakeError());
    return std::unique_ptr<device::Table>(std::move(table));
  }
  // The GPU reads single rows out of the host's memory.
  const auto pin = [&](const void* host, int64_t size) -> Result<const uint8_t*> {
    void* data = const_cast<void*>(host);
    const unsigned flags = cudaHostRegisterMapped | (source.is_volatile ? 0u : static_cast<unsigned>(cudaHostRegisterReadOnly));
    if (const cudaError_t error = cudaHostRegister(data, static_cast<size_t>(size), flags); error != cudaSuccess) {
      cudaGetLastError();
      return CudaError(error, fmt::format("the GPU cannot read a table of {} bytes in host memory; use --engram-io read", size));
    }
    table->registered.push_back(data);
    void* mapped = nullptr;
    if (const cudaError_t error = cudaHostGetDevicePointer(&mapped, data, 0); error != cudaSuccess) return CudaError(error, "cannot map a table");
    return static_cast<const uint8_t*>(mapped);
  };
  DI_ASSIGN_OR_RETURN(table->view.data, pin(source.host_data, bytes));
  if (scale_bytes > 0) {
    DI_ASSIGN_OR_RETURN(table->view.scale, pin(source.host_scale, scale_bytes));
  }
  return std::unique_ptr<device::Table>(std::move(table));
}

Result<std::unique_ptr<device::ExpertBank>> CudaDevice::CreateExperts(std::span<const device::HostExpert> experts,
                                                                      const device::HostExpert& shared) {
  auto bank = std::make_unique<CudaExpertBank>();
  ExpertBankView& view = bank->view;
  view.num_experts = static_cast<int32_t>(experts.size());
  view.hidden = shared.w1.cols;
  view.inner = shared.w1.rows;
  view.padded_inner = Padded(view.inner);
  if (experts.empty()) return Internal("a layer without experts");
  DI_RETURN_IF_ERROR(PackExperts(experts, shared, *bank));
  if (bank->is_packed) return std::unique_ptr<device::ExpertBank>(std::move(bank));

  // Parts of all experts one after another; every expert must look like the first.
  const auto place = [&](std::span<const device::HostMatrix> parts, int64_t per_expert, device::Buffer& data, device::Buffer& scale,
                         WeightView& first, int64_t& bytes, int64_t& scale_bytes) -> Status {
    const int64_t count = static_cast<int64_t>(parts.size()) / per_expert;
    first.format = parts[0].format;
    first.padded_cols = Padded(parts[0].cols);
    first.rows = 0;
    for (int64_t i = 0; i < per_expert; ++i) first.rows += parts[static_cast<size_t>(i)].rows;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto& like = parts[i % static_cast<size_t>(per_expert)];
      if (parts[i].format != like.format || parts[i].rows != like.rows || parts[i].cols != like.cols) return Internal("experts of one layer differ in shape");
    }
    DI_ASSIGN_OR_RETURN(data, UploadPadded(parts, first.padded_cols));
    DI_ASSIGN_OR_RETURN(scale, UploadScales(parts, first.padded_cols, first.scale_shift));
    first.data = data.as<uint8_t>();
    first.scale = scale.as<uint8_t>();
    bytes = first.rows * WeightRowBytes(first.format, first.padded_cols);
    scale_bytes = ((first.rows + (int64_t{1} << first.scale_shift) - 1) >> first.scale_shift) * (first.padded_cols / 32);
    // Expert borders must be borders of the scales' tiles; else every row has its own.
    if (count > 1 && first.scale_shift > 0 && first.rows % 32 != 0) return Unimplemented("FP8 experts whose height is no multiple of 32");
    return Status::Ok();
  };
  std::vector<device::HostMatrix> up, down;
  for (const auto& e : experts) {
    up.push_back(e.w1);
    up.push_back(e.w3);
    down.push_back(e.w2);
  }
  DI_RETURN_IF_ERROR(place(up, 2, bank->gate_up, bank->gate_up_scale, view.routed.gate_up, view.gate_up_bytes, view.gate_up_scale_bytes));
  DI_RETURN_IF_ERROR(place(down, 1, bank->down, bank->down_scale, view.routed.down, view.down_bytes, view.down_scale_bytes));
  const device::HostMatrix shared_up[2] = {shared.w1, shared.w3};
  int64_t unused = 0;
  DI_RETURN_IF_ERROR(place(shared_up, 2, bank->shared_gate_up, bank->shared_gate_up_scale, view.shared.gate_up, unused, unused));
  DI_RETURN_IF_ERROR(place({&shared.w2, 1}, 1, bank->shared_down, bank->shared_down_scale, view.shared.down, unused, unused));
  DI_RETURN_IF_ERROR(TakeError());
  return std::unique_ptr<device::ExpertBank>(std::move(bank));
}

Status CudaDevice::FinishWeights() {
  Sync();
  return TakeError();
}

}  // namespace deepinfer::cuda
