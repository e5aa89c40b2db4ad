# SPDX-License-Identifier: Apache-2.0
"""torch.nn.functional.linear with bfloat16 (oneDNN) or float32 weights."""
import time

WORKING_SET = 160 << 20


class Torch:
    def __init__(self, threads: int):
        import torch
        self.torch = torch
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.version = torch.__version__

    def product(self, kind: str, rows: int, cols: int, m: int, products: int) -> float:
        torch = self.torch
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        one = rows * cols * dtype.itemsize
        count = max(2, -(-WORKING_SET // one))
        first = torch.randn(rows, cols, dtype=torch.float32).to(dtype)
        self.matrices = [first.clone() for _ in range(count)]
        self.x = torch.randn(m, cols, dtype=torch.float32).to(dtype)
        self.products, self.next = products, 0
        return float(one * products)

    def run(self) -> float:
        linear = self.torch.nn.functional.linear
        start = time.perf_counter()
        for _ in range(self.products):
            linear(self.x, self.matrices[self.next % len(self.matrices)])
            self.next += 1
        return time.perf_counter() - start
