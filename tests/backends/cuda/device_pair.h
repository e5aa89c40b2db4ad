// SPDX-License-Identifier: Apache-2.0
//
// The GPU beside the CPU: the same host data on both, the same calls, results compared. A fixture that skips where no GPU is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backends/registry.h"
#include "core/dtypes.h"
#include "device/device.h"

namespace deepinfer::cuda {

using device::Act;
using device::Arithmetic;
using device::Device;

// Which kernels a GPU device uses: those for every width, or, where shapes are the released ones, those for them; these know the
// released arithmetic alone, and may sum in one go (`kFast`).
enum class Kernels { kGeneral, kReleased, kFast };
inline std::shared_ptr<Device> MakeGpu(Kernels kernels) {
  backends::DeviceOptions options;
  if (const char* plugin = std::getenv("DEEPINFER_TEST_CUDA_PLUGIN"); plugin != nullptr) options.cuda_plugin = plugin;
  options.release_numerics = kernels != Kernels::kGeneral;
  options.batch_invariant = kernels != Kernels::kFast;
  auto made = backends::CreateDevice("cuda", options);
  if (!made.ok()) std::printf("no GPU here: %s\n", made.status().message().c_str());
  return made.ok() ? *made : nullptr;
}
// Of the running test.
inline Kernels current_kernels = Kernels::kGeneral;
inline std::shared_ptr<Device> Gpu() {
  static const std::shared_ptr<Device> general = MakeGpu(Kernels::kGeneral);
  if (general == nullptr || current_kernels == Kernels::kGeneral) return general;
  static const std::shared_ptr<Device> released = MakeGpu(Kernels::kReleased), fast = MakeGpu(Kernels::kFast);
  return current_kernels == Kernels::kReleased ? released : fast;
}
inline std::shared_ptr<Device> Cpu() {
  static const std::shared_ptr<Device> cpu = backends::CreateDevice("cpu").value();
  return cpu;
}

class OnBothDevices : public testing::TestWithParam<Kernels> {
 protected:
  void SetUp() override {
    current_kernels = GetParam();
    if (Gpu() == nullptr) GTEST_SKIP() << "needs an NVIDIA GPU and the plug-in";
  }
};

inline const Arithmetic kRelease = {true, true}, kFloat32 = {false, true};
// Those that the running test's kernels take.
inline std::vector<Arithmetic> Arithmetics() {
  if (current_kernels != Kernels::kGeneral) return {kRelease};
  return {kRelease, kFloat32, {false, false}};
}
inline std::string KernelsName(const testing::TestParamInfo<Kernels>& info) {
  return info.param == Kernels::kGeneral ? "General" : info.param == Kernels::kReleased ? "Released" : "Fast";
}

// One device with buffers that live as long as it does.
class Side {
 public:
  explicit Side(Device& device) : device_(device) {}
  Device& operator*() const { return device_; }
  Device* operator->() const { return &device_; }
  void* Make(int64_t bytes) {
    buffers_.push_back(device_.Allocate(bytes).value());
    return buffers_.back().data();
  }
  template <typename T>
  T* Put(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    T* at = static_cast<T*>(Make(bytes));
    device_.Upload(at, values.data(), bytes);
    return at;
  }
  Act PutAct(const std::vector<float>& values, int64_t width) { return {Put(values), width, 4}; }
  Act MakeAct(int64_t rows, int64_t width) { return {Make(rows * width * 4), width, 4}; }
  template <typename T>
  std::vector<T> Get(const T* at, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    device_.Download(values.data(), at, count * static_cast<int64_t>(sizeof(T)));
    return values;
  }
  std::vector<float> GetAct(const Act& x, int64_t rows, int64_t width) {
    std::vector<float> values(static_cast<size_t>(rows * width));
    device_.ReadAct(x, rows, width, values.data());
    return values;
  }

 private:
  Device& device_;
  std::vector<device::Buffer> buffers_;
};

// fn(side) on both; the results. Errors of a device fail the test.
template <typename T>
struct Both {
  std::vector<T> cpu, gpu;
};
template <typename Fn>
auto OnBoth(Fn&& fn) {
  using T = typename decltype(fn(std::declval<Side&>()))::value_type;
  Both<T> both;
  {
    Side side(*Cpu());
    both.cpu = fn(side);
  }
  Side side(*Gpu());
  both.gpu = fn(side);
  const Status status = Gpu()->TakeError();
  EXPECT_TRUE(status.ok()) << status.message();
  return both;
}

// |a - b| <= limit * (norm of a / sqrt(n)) everywhere, and the norms agree to limit / 4.
inline void ExpectNear(const Both<float>& both, double limit, const std::string& what) {
  ASSERT_EQ(both.cpu.size(), both.gpu.size()) << what;
  double norm = 0, diff = 0, worst = 0;
  for (size_t i = 0; i < both.cpu.size(); ++i) {
    const double d = std::fabs(static_cast<double>(both.cpu[i]) - both.gpu[i]);
    norm += static_cast<double>(both.cpu[i]) * both.cpu[i];
    diff += d * d;
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  const double rms = std::sqrt(norm / static_cast<double>(std::max<size_t>(both.cpu.size(), 1)));
  EXPECT_LE(worst, limit * rms) << what << ": rms " << rms;
  EXPECT_LE(std::sqrt(diff), limit / 4 * std::sqrt(norm)) << what;
}

class Random {
 public:
  explicit Random(uint64_t seed) : rng_(seed) {}
  uint64_t Bits() { return rng_(); }
  std::vector<float> Floats(int64_t n, float scale = 1.0f, bool bf16 = true) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = bf16 ? RoundToBf16(normal(rng_)) : normal(rng_);
    return values;
  }
  std::vector<uint8_t> Bytes(int64_t n) {
    std::vector<uint8_t> values(static_cast<size_t>(n));
    for (uint8_t& v : values) v = static_cast<uint8_t>(rng_());
    return values;
  }

 private:
  std::mt19937_64 rng_;
};

// A random weight matrix of any format, values about 1 / sqrt(cols), with its memory.
struct HostWeight {
  device::HostMatrix matrix;
  std::vector<uint8_t> data, scale;
};
inline HostWeight RandomWeight(Random& random, device::WeightFormat format, int64_t rows, int64_t cols) {
  using device::WeightFormat;
  HostWeight w;
  w.matrix.format = format;
  w.matrix.rows = rows;
  w.matrix.cols = cols;
  const int exponent = static_cast<int>(std::lround(-0.5 * std::log2(static_cast<double>(cols))));
  const float size = std::ldexp(1.0f, exponent);
  if (format == WeightFormat::kF32 || format == WeightFormat::kBf16) {
    const auto values = random.Floats(rows * cols, size);
    w.data.resize(values.size() * (format == WeightFormat::kF32 ? 4 : 2));
    for (size_t i = 0; i < values.size(); ++i) {
      if (format == WeightFormat::kF32) {
        std::memcpy(w.data.data() + 4 * i, &values[i], 4);
      } else {
        const uint16_t bits = FloatToBf16(values[i]);
        std::memcpy(w.data.data() + 2 * i, &bits, 2);
      }
    }
  } else {
    const bool is_fp4 = format == WeightFormat::kFp4Row32;
    w.data = random.Bytes(is_fp4 ? rows * cols / 2 : rows * cols);
    if (!is_fp4)
      for (uint8_t& b : w.data) b &= 0xbf;  // up to 1.875
    w.scale = random.Bytes((format == WeightFormat::kFp8Block32 ? (rows + 31) / 32 : rows) * ((cols + 31) / 32));
    for (uint8_t& s : w.scale) s = static_cast<uint8_t>(127 + exponent - (is_fp4 ? 1 : 0) + s % 3 - 1);
    w.matrix.host_scale = w.scale.data();
  }
  w.matrix.host_data = w.data.data();
  return w;
}

}  // namespace deepinfer::cuda
