#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/stolen_core.sh [BUILD_DIR] [PAIRS]: how much speed is left when a foreign loop of plain arithmetic holds one of the cores.
# Runs an expert layer (kernels_cpu) and, with SLICE=DIR (a checkpoint or a config.json of tools/make_slice with a tokenizer, its
# weights may be missing), decode of the slice on all cores, with the loop and without in alternation, and prints the median
# of the ratios. The loop is pinned to the last core. CORES=0,1 chooses the cores (default: all).
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
build=${1:-build}
pairs=${2:-7}
cores=${CORES:-$(taskset -cp $$ | sed 's/.*: //')}
last=$(grep -oE '[0-9]+$' <<<"$cores")
threads=$(taskset -c "$cores" nproc)
loop=
stop() {
  [ -n "$loop" ] || return 0
  kill "$loop" 2>/dev/null || true
  wait "$loop" 2>/dev/null || true
  loop=
}

# Each prints one number, units a second.
moe() {
  taskset -c "$cores" "$build/bench/kernels_cpu" --pairs=15 --benchmark_filter="MoeLayer/uniform/M:1/threads:$threads/" \
    --jsonl="$work/moe.jsonl" >/dev/null 2>"$work/log" || { cat "$work/log" >&2; return 1; }
  python3 -c 'import json, sys; print(1e6 / json.loads(open(sys.argv[1]).readline())["median"])' "$work/moe.jsonl"
}
slice() {
  # shellcheck disable=SC2086
  taskset -c "$cores" "$build/deepinfer" bench steps --model "$SLICE" ${SLICE_OPTIONS:---load-format dummy} --threads "$threads" \
    --input-tokens 4 --output-tokens 24 --repeats 1 --json --quiet | python3 -c 'import json, sys; print(1e3 / json.load(sys.stdin)["step_ms"])'
}

work=$(mktemp -d)
trap 'stop; rm -rf "$work"' EXIT
for what in moe ${SLICE:+slice}; do
  : >"$work/pairs"
  for ((i = 0; i < pairs; i++)); do
    order="free stolen"
    [ $((i % 2)) = 0 ] || order="stolen free"
    for side in $order; do
      if [ "$side" = stolen ]; then
        taskset -c "$last" bash -c 'while :; do :; done' &
        loop=$!
      fi
      value=$($what)
      declare "$side=$value"
      stop
    done
    # shellcheck disable=SC2154
    echo "$free $stolen" >>"$work/pairs"
  done
  python3 - "$what" "$threads" "$work/pairs" <<'PY'
import random, statistics, sys
what, threads, path = sys.argv[1:]
ratios, free = [], []
for line in open(path):
    a, b = map(float, line.split())
    ratios.append(b / a)
    free.append(a)
draw = random.Random(1)
medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(1000))
print(f"{what}, {threads} threads: {statistics.median(ratios):.3f} of the free speed with a foreign loop on one core "
      f"(95 %: {medians[24]:.3f} to {medians[974]:.3f}, {len(ratios)} pairs; free: {statistics.median(free):.2f} a second)")
PY
done
