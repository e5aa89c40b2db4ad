// SPDX-License-Identifier: Apache-2.0
//
// BFDOT: both products and both sums are rounded to odd, subnormal inputs and results become zero; one result on every
// processor that has it.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "backends/cpu/kernels/matmul_kernels.h"

namespace deepinfer::cpu {
namespace {

#include "backends/cpu/kernels/matmul_neon-inl.h"

}  // namespace

const MatMulKernels kMatMulNeonBf16 = {Tile<Fp8, PairMath>, Tile<Fp4, PairMath>, Tile<Bf16, PairMath>, nullptr};

}  // namespace deepinfer::cpu
#endif
