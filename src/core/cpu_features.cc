// SPDX-License-Identifier: Apache-2.0
#include "core/cpu_features.h"

#include <atomic>
#include <string>

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace deepinfer {
namespace {

struct Level {
  CpuIsa isa;
  const char* name;
};
// Ascending.
constexpr Level kLevels[] = {{CpuIsa::kScalar, "scalar"}, {CpuIsa::kAvx2, "avx2"}, {CpuIsa::kAvx512, "avx512"},
                             {CpuIsa::kAmx, "amx"},       {CpuIsa::kNeon, "neon"}, {CpuIsa::kNeonBf16, "neon_bf16"}};

#if defined(__x86_64__) && defined(__linux__)
// Tile registers need the system's permission, which holds for the whole process.
bool HasTiles() {
  static const bool has_tiles = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0 || (d & kInt8) == 0) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has_tiles;
}
#else
[[maybe_unused]] bool HasTiles() { return false; }
#endif

bool DetectSupport(CpuIsa isa) {
  if (isa == CpuIsa::kScalar) return true;
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  switch (isa) {
    case CpuIsa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case CpuIsa::kAvx512:
      return DetectSupport(CpuIsa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
             __builtin_cpu_supports("avx512bf16");
    case CpuIsa::kAmx:
      return DetectSupport(CpuIsa::kAvx512) && HasTiles();
    default:
      return false;
  }
#elif defined(__aarch64__)
  constexpr unsigned long kDotProduct = 1ul << 20;  // HWCAP_ASIMDDP
  constexpr unsigned long kBf16 = 1ul << 14;        // HWCAP2_BF16
  switch (isa) {
    case CpuIsa::kNeon:
      return true;  // part of the architecture
    case CpuIsa::kNeonBf16:
      return (::getauxval(AT_HWCAP) & kDotProduct) != 0 && (::getauxval(AT_HWCAP2) & kBf16) != 0;
    default:
      return false;
  }
#else
  return false;
#endif
}

// Written once at start (or by a test between kernels); relaxed order is enough.
std::atomic<int>& ActiveLevel() {
  static std::atomic<int> level{static_cast<int>(BestCpuIsa())};
  return level;
}

}  // namespace

std::string_view CpuIsaName(CpuIsa isa) {
  for (const Level& level : kLevels) {
    if (level.isa == isa) return level.name;
  }
  return "unknown";
}

bool CpuSupports(CpuIsa isa) { return DetectSupport(isa); }

CpuIsa BestCpuIsa() { return SupportedCpuIsas().back(); }

std::vector<CpuIsa> SupportedCpuIsas() {
  std::vector<CpuIsa> levels;
  for (const Level& level : kLevels) {
    if (CpuSupports(level.isa)) levels.push_back(level.isa);
  }
  return levels;
}

Result<CpuIsa> ParseCpuIsa(std::string_view name) {
  if (name.empty() || name == "auto") return BestCpuIsa();
  for (const Level& level : kLevels) {
    if (name != level.name) continue;
    if (!CpuSupports(level.isa)) {
      return InvalidArgument("cpu-isa " + std::string(name) + " is not supported by this processor; the best level is " +
                                 std::string(CpuIsaName(BestCpuIsa())),
                             "cpu-isa");
    }
    return level.isa;
  }
  return InvalidArgument("cpu-isa is \"" + std::string(name) + "\" but must be auto, scalar, avx2, avx512, amx, neon or neon_bf16", "cpu-isa");
}

CpuIsa ActiveCpuIsa() { return static_cast<CpuIsa>(ActiveLevel().load(std::memory_order_relaxed)); }

void SetCpuIsa(CpuIsa isa) {
  DI_CHECK(CpuSupports(isa)) << "level " << CpuIsaName(isa);
  ActiveLevel().store(static_cast<int>(isa), std::memory_order_relaxed);
}

}  // namespace deepinfer
