// SPDX-License-Identifier: Apache-2.0
//
// A C interface to the shapes of bench/cpu_shapes.h, for scripts that time other libraries in the same process
// (bench/peers/compare.py). One handle per thread count; a shape belongs to its handle. Not thread-safe.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/cpu_shapes.h"
#include "core/measure.h"

namespace {

using namespace deepinfer;
using bench::Bench;
using bench::MatMulShape;
using bench::MoeShape;

struct Handle {
  explicit Handle(int threads) : bench(threads) {}
  Bench bench;
  std::unique_ptr<MatMulShape> product;
  std::unique_ptr<MoeShape> moe;
};

Handle& Of(void* handle) { return *static_cast<Handle*>(handle); }

}  // namespace

extern "C" {

// isa: "" = the best of this machine. Null if it is unknown or not available here.
__attribute__((visibility("default"))) void* peer_open(int threads, const char* isa) {
  if (*isa != 0) {
    const auto wanted = ParseCpuIsa(isa);
    if (!wanted.ok() || !CpuSupports(*wanted)) return nullptr;
    SetCpuIsa(*wanted);
  }
  return new Handle(threads);
}
__attribute__((visibility("default"))) void peer_close(void* handle) { delete &Of(handle); }
__attribute__((visibility("default"))) const char* peer_isa() {
  static const std::string name(CpuIsaName(ActiveCpuIsa()));
  return name.c_str();
}
__attribute__((visibility("default"))) const char* peer_host() {
  static const std::string text = DumpJson(HostRecord());
  return text.c_str();
}

// Bytes a second; operations a second.
__attribute__((visibility("default"))) double peer_sweep(void* handle) { return Of(handle).bench.Sweep(); }
__attribute__((visibility("default"))) double peer_peak(void* handle) { return Of(handle).bench.Peak(); }
__attribute__((visibility("default"))) int64_t peer_switches() { return InvoluntarySwitches(); }

// format: "fp4" or "fp8". Replaces the shape before. Returns the products of one run.
__attribute__((visibility("default"))) int64_t peer_product(void* handle, const char* format, int64_t rows, int64_t cols, int64_t m) {
  const auto weights = std::strcmp(format, "fp4") == 0 ? cpu::WeightFormat::kFp4Row32 : cpu::WeightFormat::kFp8Tile32;
  Of(handle).product.reset();
  Of(handle).product = std::make_unique<MatMulShape>(Of(handle).bench, weights, rows, cols, m, 1);
  return Of(handle).product->products();
}
// 6 of num_experts a token, without a shared expert.
__attribute__((visibility("default"))) void peer_moe(void* handle, int64_t m, int num_experts) {
  Of(handle).product.reset();
  Of(handle).moe.reset();
  Of(handle).moe = std::make_unique<MoeShape>(Of(handle).bench, m, num_experts, false, false);
}
// The expert numbers [m, 6] of run `i` since peer_moe.
__attribute__((visibility("default"))) const int32_t* peer_routing(void* handle, int i) { return Of(handle).moe->routing(i).data(); }
__attribute__((visibility("default"))) double peer_bytes(void* handle, int is_moe) {
  return is_moe ? Of(handle).moe->bytes() : Of(handle).product->bytes();
}

// Seconds of one run, its inputs quantised within.
__attribute__((visibility("default"))) double peer_run(void* handle, int is_moe) {
  Handle& h = Of(handle);
  return bench::SecondsOf([&] {
    if (is_moe) h.moe->Run();
    else h.product->Run(true);
  });
}

}  // extern "C"
