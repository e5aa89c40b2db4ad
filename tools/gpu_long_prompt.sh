#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A prompt of about a million tokens through the real-width slice on a GPU, 100 tokens decoded, with two sizes of prefill steps: the
# answers must be equal. tools/gpu_long_prompt.sh BUILD_DIR [WORDS]. Needs 16 GB of memory; minutes. Exits with 1 when something
# differs.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
build=$(readlink -f "${1:?usage: tools/gpu_long_prompt.sh BUILD_DIR [WORDS]}")
words=${2:-800000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find_program() { find "$build" -name "$1" -type f -perm -u+x -print -quit; }
program=$(find_program deepinfer)
plugin=$(find "$build" -name libdeepinfer_cuda.so -type f -print -quit)
"$(find_program make_slice)" "$work/slice" --tokenizer tests/golden/tokenizer/tokenizer.json --config-only
python3 - "$words" "$work/requests.jsonl" <<'PY'
import json
import random
import sys

# Seeded words of every length, so that nothing repeats for long.
rng = random.Random(11)
words = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 8))) for _ in range(int(sys.argv[1]))]
text = " ".join(words)
with open(sys.argv[2], "w") as out:
    body = {"model": "DeepSeek-V4.1-Flash", "prompt": text, "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    out.write(json.dumps({"custom_id": "long", "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
PY
for rows in 8192 3000; do
  nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 500 >"$work/memory.$rows" &
  sampler=$!
  start=$(date +%s)
  "$program" batch "$work/requests.jsonl" "$work/answer.$rows" --model "$work/slice" --load-format dummy --device cuda --cuda-plugin "$plugin" \
    --batch-invariant --decoder-replay off --num-drafts 0 --max-num-seqs 4 --max-num-batched-tokens "$rows" 2>&1 | tail -n 4
  kill $sampler
  wait $sampler 2>/dev/null || true
  echo "steps of $rows tokens: $(($(date +%s) - start)) s, $(sort -n "$work/memory.$rows" | tail -n 1) MiB of GPU memory at most"
done
python3 - "$work/answer.8192" "$work/answer.3000" <<'PY'
import json
import sys

bodies = [json.loads(open(name).readline())["response"]["body"] for name in sys.argv[1:]]
first, second = ({"text": b["choices"][0]["text"], "usage": b["usage"]} for b in bodies)
print(first["usage"])
print("equal answers" if first == second else "DIFFERENT ANSWERS")
sys.exit(0 if first == second and first["text"] else 1)
PY
