#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# soak_streaming.sh PROGRAM MAKE_SLICE LOG: DEEPINFER_SOAK_SECONDS of batch generation on a real-width slice whose experts are
# four times what --memory-budget leaves for them, in a control group (version 1 or 2) that allows the budget and no more.
# Samples the resident set and fails when it exceeds the budget, when the process ends by itself, or when an answer fails.
# DEEPINFER_SOAK_SLICE names a slice to use; by default one is made in a temporary directory (8 GB).
set -euo pipefail
program=$1 make_slice=$2 log=$3
seconds=${DEEPINFER_SOAK_SECONDS:-1800}
slice=${DEEPINFER_SOAK_SLICE:-}
work=$(mktemp -d)
group=
pid=
cleanup() {
  [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true
  [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

if [ -z "$slice" ]; then
  slice=$work/slice
  "$make_slice" "$slice" --tokenizer tests/golden/tokenizer/tokenizer.json --experts 32 --engram-rows 100000 --draft-stages 0 --quiet
fi

# Experts are FP4 with a scale byte per 32: 18.8 MB each at the released widths. The budget = what is needed with all of them,
# less three quarters of them.
read -r needed experts < <("$program" inspect --model "$slice" --json --quiet | python3 -c '
import json, sys
j = json.load(sys.stdin)
print(j["memory"]["needed_bytes"], next(p["bytes"] for p in j["parts"] if p["name"] == "routed experts"))')
budget=$((needed + (96 << 20) - experts * 3 / 4))

if [ -d /sys/fs/cgroup/memory ]; then
  group=/sys/fs/cgroup/memory/deepinfer-soak-$$
  mkdir "$group"
  echo "$budget" >"$group/memory.limit_in_bytes"
  peak_file=$group/memory.max_usage_in_bytes
elif [ -w /sys/fs/cgroup/cgroup.procs ]; then
  group=/sys/fs/cgroup/deepinfer-soak-$$
  mkdir "$group"
  echo "$budget" >"$group/memory.max"
  peak_file=$group/memory.peak
else
  echo "error: no control group can be made here; run as root" >&2
  exit 1
fi

python3 - "$work/requests.jsonl" <<'PY'
import json, random, sys
random.seed(1)
words = "river stone light engine winter garden copper signal window market".split()
with open(sys.argv[1], "w") as out:
    for i in range(100000):
        prompt = " ".join(random.choice(words) for _ in range(random.randint(3, 12)))
        body = {"model": "deepseek-flash", "prompt": prompt, "max_tokens": random.randint(1, 12), "temperature": 1, "seed": i, "ignore_eos": True}
        out.write(json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
PY

echo "soak streaming: $seconds s, budget $budget bytes (control group limit), experts $experts bytes" | tee "$log"
# The shell enters the group, then becomes the program.
bash -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' _ "$group" "$program" batch "$work/requests.jsonl" "$work/results.jsonl" \
  --model "$slice" --memory-budget "$budget" --max-model-len 512 --concurrency 2 --quiet ${DEEPINFER_SOAK_OPTIONS:-} 2>>"$log" >>"$log" &
pid=$!
begin=$SECONDS
most_kib=0
status=0
while [ $((SECONDS - begin)) -lt "$seconds" ]; do
  sleep 5
  if ! kill -0 "$pid" 2>/dev/null; then
    wait "$pid" || status=$?
    pid=
    echo "FAILED: the program ended by itself with status $status; its last answer: $(tail -n 1 "$work/results.jsonl")" | tee -a "$log"
    exit 1
  fi
  kib=$(awk '/^VmRSS/ {print $2}' "/proc/$pid/status" || echo 0)
  [ "${kib:-0}" -le "$most_kib" ] || most_kib=$kib
  if [ $(((SECONDS - begin) % 60)) -lt 5 ]; then
    echo "$((SECONDS - begin)) s: resident ${kib} KiB, most ${most_kib} KiB, $(wc -l <"$work/results.jsonl" 2>/dev/null || echo 0) answers" >>"$log"
  fi
done
# Not SIGINT: what a script starts in the background ignores it.
kill -TERM "$pid"
wait "$pid" || status=$?
pid=
answers=$(wc -l <"$work/results.jsonl")
failed=$(grep -vc '"status_code":200' "$work/results.jsonl" || true)
echo "ended with status $status (143 = asked to end); $answers answers, $failed failed; most resident $((most_kib * 1024)) of $budget bytes;" \
  "control group peak $(cat "$peak_file" 2>/dev/null || echo unknown)" | tee -a "$log"
if [ "$status" != 143 ] || [ "$failed" != 0 ] || [ "$answers" = 0 ] || [ $((most_kib * 1024)) -gt "$budget" ]; then
  echo FAILED | tee -a "$log"
  exit 1
fi
echo PASSED | tee -a "$log"
