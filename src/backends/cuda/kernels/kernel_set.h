// SPDX-License-Identifier: Apache-2.0
//
// Which kernels of this folder a GPU may run. What none of them serves belongs to the general kernels (ops/).
#pragma once

namespace deepinfer::cuda {

struct KernelSet {
  // dense.h, experts.h for few rows: mma.sync, bulk copies, 227 KiB of shared memory.
  bool has_stream = false;
  // The forms for many rows and attention.h: wgmma, sm_90a only. Elsewhere these kernels stop the program (wgmma.cuh).
  bool has_wgmma = false;
  // indexer.h: mma.sync and little shared memory.
  bool has_indexer = false;
  // Many rows by block-scaled products of FP8 and FP4.
  bool has_block_scaled = false;

  constexpr bool operator==(const KernelSet&) const = default;
};

// Code with an `a` in its target runs on that compute capability alone: 10.3 and 12.1 are GPUs without code.
constexpr KernelSet KernelSetOf(int major, int minor) {
  KernelSet set;
  if (major == 9 && minor == 0) set = {.has_stream = true, .has_wgmma = true, .has_indexer = true, .has_block_scaled = false};
  if (major == 10 && minor == 0) set = {.has_stream = true, .has_wgmma = false, .has_indexer = true, .has_block_scaled = true};
  if (major == 12 && minor == 0) set = {.has_stream = false, .has_wgmma = false, .has_indexer = true, .has_block_scaled = true};
  return set;
}

}  // namespace deepinfer::cuda
