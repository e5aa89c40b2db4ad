# SPDX-License-Identifier: Apache-2.0
"""Our CUDA kernels beside torch's, one process, strict alternation (ours, peer, ours, peer, ...).

  cuda_torch.py LIBRARY      LIBRARY: cuda_kernels.cu with the kernels' sources, built as a shared library

One JSON object a line: medians in microseconds and the median of the ratios of neighbours (peer / ours). Weights rotate over
more bytes than the L2 cache holds; times are of CUDA graphs of several launches.
"""
import ctypes
import json
import statistics
import sys

import torch

lib = ctypes.CDLL(sys.argv[1])
for name in ("di_expert_bytes", "di_dense_bytes", "di_dense_workspace", "di_plan_bytes"):
    getattr(lib, name).restype = ctypes.c_int64
E, K, H, I = 384, 6, 5120, 2304
REPS = 15
dev = "cuda"
torch.manual_seed(1)


def ptr(t):
    return ctypes.c_void_p(t.data_ptr())


def stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def check(code):
    assert code == 0, f"launch failed: CUDA error {code}"


def graph_of(launch, nodes):
    """A replayable graph of launch(0) .. launch(nodes - 1); eager when the peer cannot be captured."""
    for i in range(nodes):
        launch(i)
    torch.cuda.synchronize()
    try:
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            for i in range(nodes):
                launch(i)
        return g.replay, "graph"
    except Exception:  # noqa: BLE001
        torch.cuda.synchronize()
        return lambda: [launch(i) for i in range(nodes)], "eager"


def time_of(run, nodes):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1000 / nodes


def compare(bench, shape, m, ours, peers, nodes, extra):
    runs = {"ours": graph_of(ours, nodes)}
    for name, launch in peers.items():
        try:
            runs[name] = graph_of(launch, nodes)
        except Exception as e:  # noqa: BLE001
            print(json.dumps({"bench": bench, "shape": shape, "batch": m, "peer": name, "error": str(e)[:200]}), flush=True)
            torch.cuda.synchronize()
    times = {name: [] for name in runs}
    for _ in range(3):
        for run, _ in runs.values():
            run()
    for _ in range(REPS):
        for name, (run, _) in runs.items():
            times[name].append(time_of(run, nodes))
    for name in runs:
        if name == "ours":
            continue
        ratios = [p / o for p, o in zip(times[name], times["ours"])]
        print(json.dumps({
            "bench": bench, "shape": shape, "batch": m, "unit": "us", "median": round(statistics.median(times["ours"]), 2),
            "paired_ref": {"name": name, "mode": runs[name][1], "median": round(statistics.median(times[name]), 2),
                           "ratio_median": round(statistics.median(ratios), 3)}, **extra}), flush=True)


def experts():
    sizes = [lib.di_expert_bytes(0), lib.di_expert_bytes(1)]
    ours = [torch.empty(E * s, dtype=torch.uint8, device=dev) for s in sizes]
    shapes = [(2 * I, H), (H, I)]
    for which, (rows, cols) in enumerate(shapes):
        base = torch.randint(0, 256, (rows, cols // 2), dtype=torch.uint8, device=dev)
        scale = torch.randint(118, 122, (rows, cols // 32), dtype=torch.uint8, device=dev)
        for e in range(E):
            data = torch.roll(base, 37 * e)
            check(lib.di_pack(1, rows, cols, ptr(data), ptr(scale), ctypes.c_void_p(ours[which].data_ptr() + e * sizes[which]), stream()))
            torch.cuda.synchronize()
    tables = [torch.tensor([o.data_ptr() + e * s for e in range(E)], dtype=torch.int64, device=dev) for o, s in zip(ours, sizes)]
    peers = []
    for rows, cols in shapes:
        w = torch.empty(E, rows, cols, dtype=torch.float8_e4m3fn, device=dev)
        base = (torch.randn(rows, cols, device=dev) * 0.5).to(torch.float8_e4m3fn).view(torch.uint8)
        for e in range(E):
            w[e] = torch.roll(base, 37 * e).view(torch.float8_e4m3fn)
        peers.append((w, torch.full((E, rows), 0.01, device=dev)))
    for m in (1, 8, 64, 256, 4096):
        nodes = 12 if m == 1 else 4 if m <= 64 else 2
        calls = []
        for i in range(nodes):
            chosen = torch.stack([torch.randperm(E, device=dev)[:K] for _ in range(m)]).to(torch.int32).contiguous()
            count = torch.bincount(chosen.flatten().long(), minlength=E)
            c = {
                "chosen": chosen, "offs": torch.cumsum(count, 0).to(torch.int32), "distinct": int((count > 0).sum()),
                "weights": torch.full((m, K), 0.25, device=dev),
                "plan": torch.empty(lib.di_plan_bytes(m, E, K), dtype=torch.uint8, device=dev),
            }
            calls.append(c)
        x = (torch.randint(-8, 9, (m, H), device=dev) * 0.125).to(torch.bfloat16)
        act = torch.empty(m * K, I, dtype=torch.bfloat16, device=dev)
        y = torch.empty(m * K, H, dtype=torch.bfloat16, device=dev)
        for fast in ((1,) if m == 4096 else (0,)):
            def launch(what, i):
                c = calls[i]
                check(lib.di_experts(what, m, E, K, ptr(c["chosen"]), ptr(c["weights"]), ptr(tables[0]), ptr(tables[1]), ptr(x),
                                     ptr(act), ptr(y), ptr(c["plan"]), fast, 0, stream()))
            for i in range(nodes):
                launch(0, i)
            torch.cuda.synchronize()
            for which, name in ((0, "experts gate+up"), (1, "experts down")):
                rows, cols = shapes[which]
                a = (torch.randn(m * K, cols, device=dev)).to(torch.float8_e4m3fn)
                sa = torch.full((m * K,), 0.1, device=dev)
                w, sw = peers[which]

                def peer(i):
                    torch._scaled_grouped_mm(a, w.transpose(-2, -1), sa, sw, offs=calls[i]["offs"], out_dtype=torch.bfloat16,
                                             use_fast_accum=True)
                distinct = sum(c["distinct"] for c in calls) / nodes
                compare(name + (", fast" if fast else ""), f"384x({cols}x{rows})", m, lambda i: launch(1 + which, i),
                        {"torch fp8 _scaled_grouped_mm": peer}, nodes,
                        {"bytes": int(distinct * rows * cols * 0.53125), "flops": 2 * m * K * rows * cols})


def dense():
    for name, rows, cols in (("wq_a+wkv", 1792, 5120), ("wq_b", 32768, 1280), ("wo_b", 5120, 8192), ("shared gate+up", 4608, 5120),
                             ("shared down", 5120, 2304), ("engram", 25600, 6144)):
        copies = max(2, -(-(256 << 20) // (rows * cols)))
        packed, fp8, bf16 = [], [], []
        for _ in range(copies):
            data = (torch.randn(rows, cols, device=dev) * 0.5).to(torch.float8_e4m3fn)
            scale = torch.randint(118, 122, (rows // 32, cols // 32), dtype=torch.uint8, device=dev)
            out = torch.empty(lib.di_dense_bytes(rows, cols), dtype=torch.uint8, device=dev)
            check(lib.di_pack(0, rows, cols, ptr(data), ptr(scale), ptr(out), stream()))
            torch.cuda.synchronize()
            packed.append(out)
            fp8.append(data)
            bf16.append(data.to(torch.bfloat16))
        workspace = torch.zeros(max(16, lib.di_dense_workspace(rows, cols)), dtype=torch.uint8, device=dev)
        one = torch.ones((), device=dev)
        for m in (1, 8, 16, 64, 4096):
            x = (torch.randint(-8, 9, (m, cols), device=dev) * 0.125).to(torch.bfloat16)
            x8 = x.to(torch.float8_e4m3fn)
            y = torch.empty(m, rows, dtype=torch.bfloat16, device=dev)
            nodes = 2 if m == 4096 else max(8, copies)
            compare("dense FP8", f"{name} {cols}x{rows}", m,
                    lambda i: check(lib.di_dense(rows, cols, ptr(packed[i % copies]), ptr(x), m, ptr(y), ptr(workspace), 1, 1, stream())),
                    {"torch _scaled_mm": lambda i: torch._scaled_mm(x8, fp8[i % copies].t(), one, one, out_dtype=torch.bfloat16,
                                                                    use_fast_accum=True),
                     "torch bf16 mm": lambda i: torch.mm(x, bf16[i % copies].t())}, nodes,
                    {"bytes": rows * cols, "flops": 2 * m * rows * cols})


if __name__ == "__main__":
    experts()
    torch.cuda.empty_cache()
    dense()
