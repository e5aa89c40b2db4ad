# SPDX-License-Identifier: Apache-2.0
"""The MXFP4 expert layer of kt-kernel through its extension module (without torch)."""
import ctypes
import glob
import importlib.util
import os
import time

HIDDEN, WIDTH, CHOSEN = 5120, 2304, 6


def buffer_of(size: int):
    # Whole pages, filled with random bits.
    raw = ctypes.create_string_buffer(size + 4096)
    address = (ctypes.addressof(raw) + 4095) // 4096 * 4096
    block = os.urandom(1 << 20)
    for at in range(0, size, 1 << 20):
        ctypes.memmove(address + at, block, min(1 << 20, size - at))
    return raw, address


class KtKernel:
    def __init__(self, site_packages: str, threads: int, flags: set):
        # The widest variant whose instructions this machine has, as the package itself would choose.
        order = [("amx", {"amx_bf16", "avx512_bf16", "avx512_vbmi"}), ("avx512_bf16", {"avx512_bf16", "avx512_vbmi"}), ("avx2", {"avx2"})]
        for self.variant, needed in order:
            found = glob.glob(os.path.join(site_packages, "kt_kernel", f"_kt_kernel_ext_{self.variant}.*.so"))
            if needed <= flags and found:
                break
        else:
            raise RuntimeError("no variant for this machine")
        spec = importlib.util.spec_from_file_location("kt_kernel_ext", found[0])
        self.ext = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.ext)
        self.kind = getattr(self.ext.moe, "AMXFP4_KGroup_MOE", None) or self.ext.moe.AVX2MXFP4_MOE
        pool = self.ext.WorkerPoolConfig()
        pool.subpool_count, pool.subpool_numa_map, pool.subpool_thread_count = 1, [0], [threads]
        self.infer = self.ext.CPUInfer(pool)

    def moe(self, m: int, experts: int, routings: list) -> float:
        """routings: lists of [m, 6] expert numbers. Returns weight bytes of a mean run (without scales' padding)."""
        self.keep = []

        def many(size):
            made = [buffer_of(size) for _ in range(experts)]
            self.keep.append(made)
            return [[address for _, address in made]]

        def scales(count):
            made = []
            for _ in range(experts):
                raw, address = buffer_of(count * 2)
                ctypes.memmove(address, b"\x00\x3c" * count, count * 2)  # 2^-7 as bfloat16
                made.append((raw, address))
            self.keep.append(made)
            return [[address for _, address in made]]

        mask = ctypes.create_string_buffer(experts)
        config = self.ext.moe.MOEConfig(experts, CHOSEN, HIDDEN, WIDTH, ctypes.addressof(mask))
        config.layer_idx, config.pool, config.max_len, config.swiglu_limit = 0, self.infer.backend_, max(m, 512), 10.0
        config.gate_projs, config.up_projs = many(WIDTH * HIDDEN // 2), many(WIDTH * HIDDEN // 2)
        config.down_projs = many(HIDDEN * WIDTH // 2)
        config.gate_scales, config.up_scales = scales(WIDTH * HIDDEN // 32), scales(WIDTH * HIDDEN // 32)
        config.down_scales = scales(HIDDEN * WIDTH // 32)
        config.quant_config.bits, config.quant_config.group_size, config.quant_config.zero_point = 4, 32, False
        self.layer = self.kind(config)
        numbers = (ctypes.c_int64 * experts)(*range(experts))
        self.infer.submit(self.layer.load_weights_task(ctypes.addressof(numbers)))
        self.infer.sync()
        self.keep += [mask, numbers]
        self.count = ctypes.c_int32(m)
        self.ids = [(ctypes.c_int64 * (m * CHOSEN))(*routing) for routing in routings]
        self.weights = (ctypes.c_float * (m * CHOSEN))(*([0.25] * (m * CHOSEN)))
        self.x_raw, self.x = buffer_of(m * HIDDEN * 2)
        ctypes.memmove(self.x, b"\x00\x3f\x80\xbe" * (m * HIDDEN // 2), m * HIDDEN * 2)  # 0.5, -0.25
        self.out_raw, self.out = buffer_of(m * HIDDEN * 2)
        self.next = 0
        touched = sum(len(set(routing)) for routing in routings) / len(routings)
        return touched * 3 * HIDDEN * WIDTH * (0.5 + 2 / 32)

    def run(self) -> float:
        ids = self.ids[self.next % len(self.ids)]
        self.next += 1
        start = time.perf_counter()
        self.infer.submit(self.layer.forward_task(ctypes.addressof(self.count), CHOSEN, ctypes.addressof(ids),
                                                  ctypes.addressof(self.weights), self.x, self.out, False))
        self.infer.sync()
        return time.perf_counter() - start
