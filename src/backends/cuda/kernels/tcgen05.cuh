// SPDX-License-Identifier: Apache-2.0
//
// The instructions of the fifth tensor cores (sm_100a) by name: tensor memory, block-scaled products, their completion. One
// thread issues copies and products; they run in its order and complete on a barrier in shared memory. Device code only.
#pragma once

#include "backends/cuda/kernels/ptx.cuh"

// Other architectures have no such instructions; KernelSetOf keeps these kernels from them.
#ifdef __CUDA_ARCH_FEAT_SM100_ALL
#define DI_SM100A_ASM(...) asm volatile(__VA_ARGS__)
#else
#define DI_SM100A_ASM(...) __trap()
#endif

namespace deepinfer::cuda {

// By one whole warp; the address comes to shared memory. Columns: a power of two from 32 to 512.
__device__ __forceinline__ void TensorMemoryAllocate(uint32_t* address, uint32_t columns) {
  DI_SM100A_ASM("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(SmemAddr(address)), "r"(columns) : "memory");
  DI_SM100A_ASM("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}
// By the same warp, after everyone is done with it.
__device__ __forceinline__ void TensorMemoryFree(uint32_t address, uint32_t columns) {
  DI_SM100A_ASM("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns));
}

// Around barriers between threads that use tensor memory.
__device__ __forceinline__ void TensorFenceBefore() { DI_SM100A_ASM("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ __forceinline__ void TensorFenceAfter() { DI_SM100A_ASM("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// All copies and products this thread has issued arrive on `bar` when they are complete.
__device__ __forceinline__ void TensorCommit(uint64_t* bar) {
  DI_SM100A_ASM("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(SmemAddr(bar)) : "memory");
}

// 32 columns of the calling warp's 32 lanes (warp % 4), lane by lane: v[i] is column i.
__device__ __forceinline__ void TensorLoad32(uint32_t address, float* v) {
#ifdef __CUDA_ARCH_FEAT_SM100_ALL
  uint32_t r[32];
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, [%32];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]), "=r"(r[8]), "=r"(r[9]),
        "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]), "=r"(r[14]), "=r"(r[15]), "=r"(r[16]), "=r"(r[17]), "=r"(r[18]),
        "=r"(r[19]), "=r"(r[20]), "=r"(r[21]), "=r"(r[22]), "=r"(r[23]), "=r"(r[24]), "=r"(r[25]), "=r"(r[26]), "=r"(r[27]),
        "=r"(r[28]), "=r"(r[29]), "=r"(r[30]), "=r"(r[31])
      : "r"(address));
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < 32; ++i) v[i] = __uint_as_float(r[i]);
#else
  __trap();
#endif
}

// What MultiplySm100aStage (block_scaled_layout.h) issues.
struct TensorEngine {
  // 32 rows of 16 bytes to four columns of the lanes 0 to 31, and again of the other three quarters.
  __device__ __forceinline__ void CopyScales(uint32_t tmem, uint64_t descriptor) {
    DI_SM100A_ASM("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(tmem), "l"(descriptor) : "memory");
  }
  __device__ __forceinline__ void Multiply(uint32_t sums, uint64_t a, uint64_t b, uint32_t instruction, uint32_t scales_a,
                                           uint32_t scales_b, bool adds) {
    DI_SM100A_ASM(
        "{\n"
        ".reg .pred adds;\n"
        "setp.ne.b32 adds, %6, 0;\n"
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%0], %1, %2, %3, [%4], [%5], adds;\n"
        "}\n" ::"r"(sums),
        "l"(a), "l"(b), "r"(instruction), "r"(scales_a), "r"(scales_b), "r"(static_cast<uint32_t>(adds))
        : "memory");
  }
};

}  // namespace deepinfer::cuda
