# SPDX-License-Identifier: Apache-2.0
"""Products of ggml's CPU backend through its C interface."""
import ctypes
import glob
import os
import time

MXFP4, Q8_0, F32 = 39, 8, 0
BLOCK_BYTES = {MXFP4: 17, Q8_0: 34}  # 32 weights and their scale
WORKING_SET = 160 << 20


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml:
    def __init__(self, directory: str, threads: int):
        found = glob.glob(os.path.join(directory, "**", "libggml-cpu.so*"), recursive=True)
        if not found:
            raise RuntimeError(f"no libggml-cpu.so below {directory}")
        folder = os.path.dirname(found[0])
        self.base = ctypes.CDLL(os.path.join(folder, "libggml-base.so"), ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(found[0], ctypes.RTLD_GLOBAL)
        p, n = ctypes.c_void_p, ctypes.c_int64
        signatures = {
            (self.base, "ggml_version"): (ctypes.c_char_p, []),
            (self.base, "ggml_init"): (p, [InitParams]),
            (self.base, "ggml_free"): (None, [p]),
            (self.base, "ggml_new_tensor_2d"): (p, [p, ctypes.c_int, n, n]),
            (self.base, "ggml_mul_mat"): (p, [p, p, p]),
            (self.base, "ggml_nbytes"): (ctypes.c_size_t, [p]),
            (self.base, "ggml_new_graph"): (p, [p]),
            (self.base, "ggml_build_forward_expand"): (None, [p, p]),
            (self.base, "ggml_backend_alloc_ctx_tensors"): (p, [p, p]),
            (self.base, "ggml_backend_alloc_ctx_tensors_from_buft"): (p, [p, p]),
            (self.base, "ggml_backend_buffer_free"): (None, [p]),
            (self.base, "ggml_backend_buft_name"): (ctypes.c_char_p, [p]),
            (self.base, "ggml_backend_tensor_set"): (None, [p, p, ctypes.c_size_t, ctypes.c_size_t]),
            (self.base, "ggml_backend_graph_compute"): (ctypes.c_int, [p, p]),
            (self.base, "ggml_backend_reg_get_proc_address"): (p, [p, ctypes.c_char_p]),
            (self.base, "ggml_backend_reg_dev_get"): (p, [p, ctypes.c_size_t]),
            (self.cpu, "ggml_backend_cpu_reg"): (p, []),
            (self.cpu, "ggml_backend_cpu_init"): (p, []),
            (self.cpu, "ggml_backend_cpu_set_n_threads"): (None, [p, ctypes.c_int]),
        }
        for (library, name), (result, arguments) in signatures.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self.quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, p)(lambda level, text, data: None)
        self.base.ggml_log_set(self.quiet, None)
        self.version = self.base.ggml_version().decode()
        self.backend = self.cpu.ggml_backend_cpu_init()
        self.cpu.ggml_backend_cpu_set_n_threads(self.backend, threads)
        self.freed = []
        self.repack = None
        registry = self.cpu.ggml_backend_cpu_reg()
        address = self.base.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        if address:
            get = ctypes.CFUNCTYPE(ctypes.POINTER(p), p)(address)
            kinds = get(self.base.ggml_backend_reg_dev_get(registry, 0))
            i = 0
            while kinds and kinds[i]:
                if b"REPACK" in self.base.ggml_backend_buft_name(kinds[i]):
                    self.repack = kinds[i]
                i += 1

    def close(self):
        for free, pointer in reversed(self.freed):
            free(pointer)
        self.freed = []

    def context(self, tensors: int) -> int:
        context = self.base.ggml_init(InitParams(1024 * (tensors + 8) + (1 << 20), None, True))
        self.freed.append((self.base.ggml_free, context))
        return context

    def product(self, kind: int, rows: int, cols: int, m: int, products: int, repack: bool) -> float:
        """Sets the shape; returns the weight bytes that one run of `products` products reads."""
        self.close()
        if repack and self.repack is None:
            raise RuntimeError("this build has no repacking buffer type")
        one = rows * cols // 32 * BLOCK_BYTES[kind]
        count = max(products, -(-WORKING_SET // one))
        count = -(-count // products) * products
        weights = self.context(count)
        matrices = [self.base.ggml_new_tensor_2d(weights, kind, cols, rows) for _ in range(count)]
        if repack:
            buffer = self.base.ggml_backend_alloc_ctx_tensors_from_buft(weights, self.repack)
        else:
            buffer = self.base.ggml_backend_alloc_ctx_tensors(weights, self.backend)
        if not buffer:
            raise RuntimeError("no memory for the weights")
        self.freed.append((self.base.ggml_backend_buffer_free, buffer))
        data = bytearray(os.urandom(one))
        blocks = one // BLOCK_BYTES[kind]
        if kind == MXFP4:
            data[0::17] = bytes([120]) * blocks  # exponent of the scale
        else:
            data[0::34] = bytes([0x00]) * blocks  # 2^-7 as float16
            data[1::34] = bytes([0x20]) * blocks
        raw = (ctypes.c_char * one).from_buffer(data)
        for matrix in matrices:
            self.base.ggml_backend_tensor_set(matrix, raw, 0, one)
        self.graphs = []
        work = self.context(2 * count + 256 * (count // products))
        # Graphs are larger than tensors: each gets a context of its own size.
        x = self.base.ggml_new_tensor_2d(work, F32, cols, m)
        outputs = [self.base.ggml_mul_mat(work, matrix, x) for matrix in matrices]
        buffer = self.base.ggml_backend_alloc_ctx_tensors(work, self.backend)
        self.freed.append((self.base.ggml_backend_buffer_free, buffer))
        values = (ctypes.c_float * (cols * m))(*[((i * 37) % 256 - 128) / 64.0 for i in range(cols * m)])
        self.base.ggml_backend_tensor_set(x, values, 0, ctypes.sizeof(values))
        for first in range(0, count, products):
            graph_context = self.context(4096)
            graph = self.base.ggml_new_graph(graph_context)
            for output in outputs[first:first + products]:
                self.base.ggml_build_forward_expand(graph, output)
            self.graphs.append(graph)
        self.next = 0
        return float(one * products)

    def run(self) -> float:
        graph = self.graphs[self.next % len(self.graphs)]
        self.next += 1
        start = time.perf_counter()
        status = self.base.ggml_backend_graph_compute(self.backend, graph)
        seconds = time.perf_counter() - start
        if status != 0:
            raise RuntimeError(f"ggml: graph status {status}")
        return seconds
