#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepInfer's CPU kernels and other libraries at the same shapes, in one process per peer, in strict alternation.

  bench/peers/compare.py [--build build] [--peers build/peers] [--only ggml,torch,kt-kernel] [--threads 1,2] [--pairs 15]
                         [--shapes REGEX] [--cpu-isa avx2] [--out FILE.jsonl]

A pair is one run of each side, the order turning from pair to pair (A B, B A), a read sweep of the machine before each run.
Both sides read weights that rotate over more than 128 MiB and get unquantised inputs, which they quantise within the time.
Prints a table and, with --out, one record a line (the form of bench/results/README.md): `median`, `p10`, `p90` are ours in
microseconds, `paired_ref` is the peer, its ratio says how many times as many weights (or operations) a second we manage:
median of the per-pair ratios and its 95 % bootstrap interval. Pairs whose slower sweep is below 70 % of the run's best are left out.
"""
import argparse
import datetime
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)

# name, our weights, rows, cols; the peers' formats of the same width class.
FP4_VEC = [("5120x2304", 2304, 5120), ("2304x5120", 5120, 2304), ("5120x4608", 4608, 5120)]
FP8_VEC = [("5120x2304", 2304, 5120), ("5120x1280", 1280, 5120), ("1280x32768", 32768, 1280), ("5120x512", 512, 5120),
           ("8192x5120", 5120, 8192), ("5120x4608", 4608, 5120), ("2304x5120", 5120, 2304), ("6144x25600", 25600, 6144)]
MANY = [8, 32, 128, 512]
EXPERTS = 32
SETTLE_S = 0.02  # OpenMP workers go on spinning for milliseconds after their loop and would take a core from the next run


def cases(peer, flags):
    """(family, our format, shape name, rows, cols, M, peer's format)"""
    if peer == "ggml":
        for name, rows, cols in FP4_VEC:
            yield "Fp4MatVec", "fp4", name, rows, cols, 1, "mxfp4-repack"
        yield "Fp4MatVec", "fp4", *FP4_VEC[0], 1, "mxfp4"
        for name, rows, cols in FP8_VEC:
            yield "Fp8MatVec", "fp8", name, rows, cols, 1, "q8_0"
        for m in MANY:
            yield "Fp4MatMul", "fp4", *FP4_VEC[0], m, "mxfp4-repack"
    elif peer == "torch":
        kinds = ["bf16"] if {"avx512_bf16", "amx_bf16"} & flags else ["bf16", "f32"]
        for kind in kinds:
            for m in [1] + MANY:
                yield "Fp4MatVec" if m == 1 else "Fp4MatMul", "fp4", *FP4_VEC[0], m, kind
    else:
        for m in (1, 128):
            yield "MoeLayer", "fp4", f"6 of {EXPERTS}", 0, 0, m, "mxfp4"


def cpu_flags():
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("flags"):
                return set(line.split(":")[1].split())
    return set()


def git(*arguments):
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    return done.stdout.strip()


def interval(values):
    """95 % of the median by bootstrap, from fixed seeds."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(1000))
    return [medians[24], medians[974]]


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * (len(values) - 1) + 0.5))]


def open_peer(name, arguments, threads):
    reason = os.path.join(arguments.peers, name + ".unavailable")
    if os.path.exists(reason):
        raise RuntimeError(open(reason).read().strip())
    if name == "ggml":
        import peer_ggml
        return peer_ggml.Ggml(os.path.join(arguments.peers, "ggml"), threads)
    if name == "torch":
        import peer_torch
        return peer_torch.Torch(threads)
    import peer_kt
    import sysconfig
    return peer_kt.KtKernel(sysconfig.get_paths()["purelib"], threads, cpu_flags())


def set_shape(name, peer, ours, case):
    family, form, _, rows, cols, m, peer_form = case
    if name == "kt-kernel":
        ours.moe(m, EXPERTS)
        return peer.moe(m, EXPERTS, [ours.routing(i, m) for i in range(8)])
    products = ours.product(form, rows, cols, m)
    if name == "ggml":
        import peer_ggml
        kind = peer_ggml.Q8_0 if peer_form == "q8_0" else peer_ggml.MXFP4
        return peer.product(kind, rows, cols, m, products, peer_form.endswith("repack"))
    return peer.product(peer_form, rows, cols, m, products)


def flops_of(case, products):
    family, _, _, rows, cols, m, _ = case
    if family == "MoeLayer":
        return 2.0 * m * 6 * 3 * 5120 * 2304
    return 2.0 * rows * cols * m * products


def measure(name, arguments, threads, out):
    import ours as ours_module
    library = os.path.join(arguments.build, "bench", "libpeer_shapes.so")
    if not os.path.exists(library):
        raise SystemExit(f"error: {library} is missing: ninja -C {arguments.build} peer_shapes")
    # Libraries that write to the terminal do not write into the table.
    table = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    ours = ours_module.Ours(library, threads, arguments.cpu_isa)
    peer = open_peer(name, arguments, threads)
    version = getattr(peer, "version", None)
    if version is None:
        from importlib.metadata import version as of
        version = f"{of('kt-kernel')} {peer.variant}"
    cores = os.cpu_count() or 1
    for case in cases(name, cpu_flags()):
        family, form, shape, rows, cols, m, peer_form = case
        label = f"{family}/{shape}/M:{m}/threads:{threads}/{name}:{peer_form}"
        if (arguments.shapes and not re.search(arguments.shapes, label)) or arguments.batch not in ("", str(m)):
            continue
        try:
            peer_bytes = set_shape(name, peer, ours, case)
        except RuntimeError as error:
            print(f"{label}: {error}", file=table, flush=True)
            continue
        our_bytes = ours.bytes()
        products = 1 if family == "MoeLayer" else max(1, round(our_bytes / (rows * cols * (17 / 32 if form == "fp4" else 1.001))))
        flops = flops_of(case, products)
        for _ in range(2):
            ours.run()
            peer.run()
        rows_of = []
        before, start = ours.switches(), datetime.datetime.now()
        for pair in range(arguments.pairs):
            row = {}
            for side in ("ours", "peer") if pair % 2 == 0 else ("peer", "ours"):
                row[side + "_sweep"] = ours.sweep()
                row[side] = ours.run() if side == "ours" else peer.run()
                time.sleep(SETTLE_S)
            if m > 1:
                row["peak"] = ours.peak()
            rows_of.append(row)
        seconds = (datetime.datetime.now() - start).total_seconds()
        switches = (ours.switches() - before) / seconds
        sweeps = [min(r["ours_sweep"], r["peer_sweep"]) for r in rows_of]
        kept = [r for r, s in zip(rows_of, sweeps) if s >= 0.7 * max(sweeps)]
        if len(kept) < 3:
            kept = rows_of
        ratios = [r["peer"] / r["ours"] for r in kept]
        our_share = [our_bytes / r["ours"] / r["ours_sweep"] for r in kept]
        peer_share = [peer_bytes / r["peer"] / r["peer_sweep"] for r in kept]
        times = [r["ours"] * 1e6 for r in kept]
        spread = 1 - quantile(sweeps, 0.1) / quantile(sweeps, 0.9)
        counters = {
            "ratio_read": statistics.median(our_share), "ratio_read_ci95": interval(our_share),
            "peer_ratio_read": statistics.median(peer_share),
            "GFLOP/s": flops / statistics.median(times) * 1e-3,
            "peer_GFLOP/s": flops / statistics.median(r["peer"] for r in kept) * 1e-9,
            "sweep_GB/s": statistics.median(r["ours_sweep"] for r in kept) * 1e-9,
            "pairs_kept": len(kept), "sweep_spread": spread, "ctx_switches_per_s": switches,
        }
        if m > 1:
            shares = [flops / r["ours"] / r["peak"] for r in kept]
            counters["ratio_peak"], counters["ratio_peak_ci95"] = statistics.median(shares), interval(shares)
            counters["peer_ratio_peak"] = statistics.median(flops / r["peer"] / r["peak"] for r in kept)
        record = {
            "bench": "peers", "commit": git("rev-parse", "--short=12", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno")),
            "date_utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "host": {**ours.host, "isa": ours.isa}, "device": {"name": "cpu"}, "backend": "cpu", "dtype": form,
            "shape": f"{family}/{shape}", "threads": threads, "batch": m, "reps": arguments.pairs,
            "median": statistics.median(times), "p10": quantile(times, 0.1), "p90": quantile(times, 0.9), "unit": "us",
            "bytes": our_bytes, "flops": flops,
            "paired_ref": {"name": f"{name} {version} {peer_form}", "median": statistics.median(r["peer"] for r in kept) * 1e6,
                           "ratio_median": statistics.median(ratios), "ratio_ci95": interval(ratios)},
            "counters": counters,
            "valid": os.getloadavg()[0] <= 0.75 * cores and spread <= 0.30 and switches <= 50,
        }
        low, high = record["paired_ref"]["ratio_ci95"]
        share = "ratio_peak" if m > 1 else "ratio_read"
        print(f"{label:<66} {record['paired_ref']['ratio_median']:6.2f}x [{low:.2f}, {high:.2f}]   of the "
              f"{'peak' if m > 1 else 'sweep'}: {counters[share]:.2f}, peer {counters['peer_' + share]:.2f}"
              f"{'' if record['valid'] else '   (busy machine)'}", file=table, flush=True)
        if out:
            with open(out, "a") as file:
                file.write(json.dumps(record) + "\n")


def start_child(python, name, threads, batch, timeout):
    command = [python, os.path.abspath(__file__), *sys.argv[1:], "--child", f"{name}:{threads}:{batch}"]
    try:
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": threads}, timeout=timeout)
        if done.returncode != 0:
            print(f"{name}: the process with {threads} threads ended with {done.returncode}", flush=True)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        print(f"{name}: not done with {threads} threads after {timeout} s", flush=True)
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build folder of DeepInfer")
    parser.add_argument("--peers", default=os.path.join(ROOT, "build", "peers"), help="folder of bench/peers/install.sh")
    parser.add_argument("--only", default="ggml,torch,kt-kernel")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--shapes", default="", help="regular expression over the printed names")
    parser.add_argument("--cpu-isa", default="")
    parser.add_argument("--out", default="")
    parser.add_argument("--timeout", type=int, default=1200, help="seconds for one peer and thread count")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.pairs = max(3, arguments.pairs)
    if arguments.child:
        name, threads, arguments.batch = arguments.child.split(":")
        try:
            measure(name, arguments, int(threads), arguments.out)
        except (RuntimeError, ImportError, OSError, AttributeError) as error:
            print(f"{name}: not measured: {error}", file=sys.stderr, flush=True)
        return
    # Each peer has a process of its own, with the interpreter that install.sh set up where there is one.
    python = os.path.join(arguments.peers, "venv", "bin", "python")
    if not os.path.exists(python):
        python = sys.executable
    for threads in arguments.threads.split(","):
        for name in arguments.only.split(","):
            if name != "kt-kernel":
                start_child(python, name, threads, "", arguments.timeout)
                continue
            # Its workers sometimes wait for each other for ever, so each batch is a process with a short limit and three tries.
            for batch in ("1", "128"):
                any(start_child(python, name, threads, batch, min(arguments.timeout, 150)) for _ in range(3))


if __name__ == "__main__":
    main()
