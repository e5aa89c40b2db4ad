// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_device.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

namespace deepinfer::cpu {

namespace {

// Allocations from this size on are page mappings: zeroed by the kernel when touched, huge pages where possible.
constexpr int64_t kMapThreshold = int64_t{1} << 20;

void* MapPages(int64_t bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

}  // namespace

CpuDevice::CpuDevice(int num_threads, CpuPinning pinning)
    : pool_(std::make_unique<ThreadPool>(num_threads, pinning)), row_ops_(RowOpsFor(ActiveCpuIsa())) {
  scratch_.resize(static_cast<size_t>(pool_->num_threads()));
}

CpuDevice::~CpuDevice() = default;

Result<std::unique_ptr<CpuDevice>> CpuDevice::Create(int num_threads, std::string_view isa, CpuPinning pinning) {
  if (!isa.empty()) {
    DI_ASSIGN_OR_RETURN(const CpuIsa level, ParseCpuIsa(isa));
    SetCpuIsa(level);
  }
  return std::unique_ptr<CpuDevice>(new CpuDevice(num_threads, pinning));
}

Result<device::Buffer> CpuDevice::Allocate(int64_t bytes) {
  const int64_t rounded = (std::max<int64_t>(bytes, 1) + 63) / 64 * 64;
  void* data = nullptr;
  if (rounded >= kMapThreshold) {
    data = MapPages(rounded);
    if (data != nullptr) madvise(data, static_cast<size_t>(rounded), MADV_HUGEPAGE);
  } else {
    data = std::aligned_alloc(64, static_cast<size_t>(rounded));
    if (data != nullptr) std::memset(data, 0, static_cast<size_t>(rounded));
  }
  if (data == nullptr) return ResourceExhausted(fmt::format("cannot allocate {} bytes of memory; close other programs, lower --max-model-len or use a machine with more", bytes));
  return device::Buffer(this, data, rounded);
}

Result<device::Buffer> CpuDevice::Reserve(int64_t bytes) {
  const int64_t rounded = std::max(bytes, kMapThreshold);
  void* data = MapPages(rounded);
  if (data == nullptr) return ResourceExhausted(fmt::format("cannot reserve {} bytes of address space", bytes));
  return device::Buffer(this, data, rounded);
}

void CpuDevice::Free(void* data, int64_t bytes) {
  if (bytes >= kMapThreshold) {
    munmap(data, static_cast<size_t>(bytes));
  } else {
    std::free(data);
  }
}

void CpuDevice::Upload(void* to, const void* host_from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, host_from, static_cast<size_t>(bytes));
}

void CpuDevice::Download(void* host_to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(host_to, from, static_cast<size_t>(bytes));
}

void CpuDevice::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void CpuDevice::ReadAct(const Act& x, int64_t rows, int64_t width, float* host_to) {
  for (int64_t t = 0; t < rows; ++t)
    std::memcpy(host_to + t * width, Row(x, t), static_cast<size_t>(width) * sizeof(float));
}

void CpuDevice::WriteAct(const Act& x, int64_t rows, int64_t width, const float* host_from) {
  for (int64_t t = 0; t < rows; ++t)
    std::memcpy(Row(x, t), host_from + t * width, static_cast<size_t>(width) * sizeof(float));
}

float* CpuDevice::Scratch(int thread_idx, int slot, int64_t num_floats) {
  auto& buffer = scratch_[static_cast<size_t>(thread_idx)].slots[slot];
  if (static_cast<int64_t>(buffer.size()) < num_floats) buffer.resize(static_cast<size_t>(num_floats + num_floats / 4));
  return buffer.data();
}

}  // namespace deepinfer::cpu
