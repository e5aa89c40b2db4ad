#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The speed of the NVIDIA backend: kernels alone, the demo model, the real-width slice at several batch sizes, prefill.
#   bench/gpu.sh BUILD_DIR [OUT_DIR] [PART...]     parts: kernels demo decode prefill serve (all but serve)
# BUILD_DIR holds deepinfer, libdeepinfer_cuda.so, make_slice and kernels_cuda. The slice with all 384 experts a layer is made in
# memory: 60 GB of it and 60 GB on the GPU (parts decode, prefill); EXPERTS=16 takes 8. SECONDS_SERVED (300): how long `serve` is under load.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit 1
build=$(readlink -f "${1:?usage: bench/gpu.sh BUILD_DIR [OUT_DIR] [PART...]}")
out=${2:-bench/results/gpu}
shift $(($# < 2 ? $# : 2))
parts=${*:-kernels demo decode prefill}
experts=${EXPERTS:-384}
mkdir -p "$out"
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
find_program() { find "$build" -name "$1" -type f -perm -u+x -print -quit; }
program=$(find_program deepinfer)
plugin=$(find "$build" -name libdeepinfer_cuda.so -type f -print -quit)
slice() {
  [ -d "$work/slice$1" ] || "$(find_program make_slice)" "$work/slice$1" --experts "$1" --tokenizer tests/golden/tokenizer/tokenizer.json --config-only
  echo "$work/slice$1"
}
throughput() { "$program" bench throughput --device cuda --cuda-plugin "$plugin" --quiet --num-drafts 0 "$@"; }
failed=0
for part in $parts; do
  echo "== $part"
  case $part in
    kernels) "$(find_program kernels_cuda)" dense experts attention indexer | tee "$out/kernels.jsonl" || failed=1 ;;
    demo)
      for batch in 1 8 64; do
        throughput --model models/demo --input-tokens 64 --output-tokens 256 --repeats 3 --threads 4 --batch "$batch" --requests $((batch > 8 ? 2 * batch : 4 * batch)) | tee "$out/demo-$batch.txt" || failed=1
      done
      ;;
    decode)
      for batch in 1 8 64; do
        throughput --model "$(slice "$experts")" --load-format dummy --max-model-len 16384 --decoder-replay off --input-tokens 64 --output-tokens 64 --repeats 3 --batch "$batch" --requests "$batch" | tee "$out/decode-$batch.txt" || failed=1
      done
      ;;
    prefill)
      throughput --model "$(slice "$experts")" --load-format dummy --max-model-len 16384 --decoder-replay off --max-num-batched-tokens 8192 --input-tokens 8192 --output-tokens 2 --repeats 3 --batch 1 --requests 1 | tee "$out/prefill.txt" || failed=1
      ;;
    serve)
      "$program" serve --model models/demo --device cuda --cuda-plugin "$plugin" --port 18080 >"$out/serve.log" 2>&1 &
      server=$!
      until "$program" bench serve --url http://127.0.0.1:18080 --num-prompts 1 --output-tokens 1 >/dev/null 2>&1; do
        kill -0 "$server" 2>/dev/null || { tail -n 5 "$out/serve.log"; exit 1; }
      done
      "$program" bench serve --url http://127.0.0.1:18080 --concurrency 64 --input-tokens 256 --output-tokens 128 --disconnect-rate 0.05 \
        --duration-s "${SECONDS_SERVED:-300}" | tee "$out/serve.txt" || failed=1
      kill -INT "$server" && wait "$server" || failed=1
      server=
      ;;
    *)
      echo "error: no part $part; parts are kernels demo decode prefill serve" >&2
      exit 2
      ;;
  esac
done
exit $failed
