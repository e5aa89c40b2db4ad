// SPDX-License-Identifier: Apache-2.0
#include "core/cpu_features.h"

#include <atomic>
#include <string>

namespace deepinfer {
namespace {

bool DetectSupport(CpuIsa isa) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  switch (isa) {
    case CpuIsa::kScalar:
      return true;
    case CpuIsa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case CpuIsa::kAvx512:
      return DetectSupport(CpuIsa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
             __builtin_cpu_supports("avx512bf16");
  }
  return false;
#else
  return isa == CpuIsa::kScalar;
#endif
}

// Written once at start (or by a test between kernels); relaxed order is enough.
std::atomic<int>& ActiveLevel() {
  static std::atomic<int> level{static_cast<int>(BestCpuIsa())};
  return level;
}

}  // namespace

std::string_view CpuIsaName(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kScalar:
      return "scalar";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

bool CpuSupports(CpuIsa isa) { return DetectSupport(isa); }

CpuIsa BestCpuIsa() {
  if (CpuSupports(CpuIsa::kAvx512)) return CpuIsa::kAvx512;
  if (CpuSupports(CpuIsa::kAvx2)) return CpuIsa::kAvx2;
  return CpuIsa::kScalar;
}

std::vector<CpuIsa> SupportedCpuIsas() {
  std::vector<CpuIsa> levels;
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (CpuSupports(isa)) levels.push_back(isa);
  }
  return levels;
}

Result<CpuIsa> ParseCpuIsa(std::string_view name) {
  if (name.empty() || name == "auto") return BestCpuIsa();
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (name != CpuIsaName(isa)) continue;
    if (!CpuSupports(isa)) {
      return InvalidArgument("cpu-isa " + std::string(name) + " is not supported by this processor; the best level is " +
                                 std::string(CpuIsaName(BestCpuIsa())),
                             "cpu-isa");
    }
    return isa;
  }
  return InvalidArgument("cpu-isa is \"" + std::string(name) + "\" but must be auto, scalar, avx2 or avx512", "cpu-isa");
}

CpuIsa ActiveCpuIsa() { return static_cast<CpuIsa>(ActiveLevel().load(std::memory_order_relaxed)); }

void SetCpuIsa(CpuIsa isa) {
  DI_CHECK(CpuSupports(isa)) << "level " << CpuIsaName(isa);
  ActiveLevel().store(static_cast<int>(isa), std::memory_order_relaxed);
}

}  // namespace deepinfer
