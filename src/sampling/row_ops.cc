// SPDX-License-Identifier: Apache-2.0
#include "sampling/row_ops.h"

#include <vector>

namespace deepinfer::sampling {

extern const RowOps kRowOpsScalar;
#if defined(__x86_64__)
extern const RowOps kRowOpsAvx2;
extern const RowOps kRowOpsAvx512;
#endif

namespace {

std::vector<const RowOps*> Supported() {
  std::vector<const RowOps*> ops{&kRowOpsScalar};
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2) ops.push_back(&kRowOpsAvx2);
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
    ops.push_back(&kRowOpsAvx512);
  }
#endif
  return ops;
}

}  // namespace

std::span<const RowOps* const> AllRowOps() {
  // Never destroyed: an engine that ends with the process may still sample while static objects go.
  static const auto& ops = *new std::vector<const RowOps*>(Supported());
  return ops;
}

const RowOps& GetRowOps() { return *AllRowOps().back(); }

}  // namespace deepinfer::sampling
