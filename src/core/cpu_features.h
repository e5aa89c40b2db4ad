// SPDX-License-Identifier: Apache-2.0
//
// Which instruction set level the kernels use. A level is chosen once at start: the best one the processor has, or the
// option cpu-isa. Every dispatch table asks ActiveCpuIsa(); tests switch it with SetCpuIsa().
#pragma once

#include <string_view>
#include <vector>

#include "core/status.h"

namespace deepinfer {

// kAvx2 means AVX2 with FMA; kAvx512 means AVX-512 F, BW, VL, DQ, VBMI, VNNI and BF16. kAmx is that with the tile
// instructions for bf16 and int8, which the system lets a process use on request. Processors between two levels use the lower.
// kNeon is plain 64-bit ARM; kNeonBf16 means its bf16 and int8 dot products. Levels of two architectures never meet: "at least
// kAvx2" may be asked in x86 code only.
enum class CpuIsa { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kAmx = 3, kNeon = 16, kNeonBf16 = 17 };

std::string_view CpuIsaName(CpuIsa isa);

// "scalar", "avx2", "avx512", "amx", "neon" or "neon_bf16"; "auto" and "" give the best supported level. An unsupported level is an error.
Result<CpuIsa> ParseCpuIsa(std::string_view name);

bool CpuSupports(CpuIsa isa);
CpuIsa BestCpuIsa();
// All levels that this processor can run, ascending; the first one is kScalar.
std::vector<CpuIsa> SupportedCpuIsas();

// The level in use. Changing it is only allowed while no kernel runs; matrices packed before keep working (one layout
// serves all levels).
CpuIsa ActiveCpuIsa();
void SetCpuIsa(CpuIsa isa);

// Restores the previous level at the end of a test.
class ScopedCpuIsa {
 public:
  explicit ScopedCpuIsa(CpuIsa isa) : previous_(ActiveCpuIsa()) { SetCpuIsa(isa); }
  ~ScopedCpuIsa() { SetCpuIsa(previous_); }
  ScopedCpuIsa(const ScopedCpuIsa&) = delete;
  ScopedCpuIsa& operator=(const ScopedCpuIsa&) = delete;

 private:
  CpuIsa previous_;
};

}  // namespace deepinfer
