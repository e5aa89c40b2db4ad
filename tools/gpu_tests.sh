#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs everything that needs a GPU: tools/gpu_tests.sh BUILD_DIR [LOG]. BUILD_DIR holds deepinfer, libdeepinfer_cuda.so and the
# test programs of a build with DEEPINFER_CUDA=ON and DEEPINFER_TESTS=ON; needs about 16 GB of memory for the slice. Exits with 1 when something failed.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
build=$(readlink -f "${1:?usage: tools/gpu_tests.sh BUILD_DIR [LOG]}")
log=${2:-bench/results/gpu-tests.txt}
mkdir -p "$(dirname "$log")"
find_program() { find "$build" -name "$1" -type f -perm -u+x -print -quit; }
export DEEPINFER_TEST_CUDA_PLUGIN
DEEPINFER_TEST_CUDA_PLUGIN=$(find "$build" -name libdeepinfer_cuda.so -type f -print -quit)
failed=0
{
  date -u +%F
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  answer=$(env -u DEEPINFER_TEST_CUDA_PLUGIN "$(find_program deepinfer)" generate --model models/demo --device cuda \
    --cuda-plugin "$DEEPINFER_TEST_CUDA_PLUGIN" --chat "What is the capital of France?" --temperature 0 --max-tokens 64) || failed=1
  echo "demo: $answer"
  run() {
    echo "== $*"
    timeout 280 "$@" >"$log.part" 2>&1 || failed=1
    grep -E "^\[ +(FAILED|PASSED|SKIPPED) +\]|_test.cc:[0-9]+: Failure|worst logit" "$log.part" | sort | uniq -c
  }
  run "$(find_program cuda_ops_test)"
  export DEEPINFER_TEST_DEVICE=cuda
  # Streaming of experts and allocation counts belong to the CPU backend.
  run "$(find_program model_test)" --gtest_filter='-Streaming*:Allocation*'
  run "$(find_program engine_test)"
  run "$(find_program slice_test)"
  [ $failed = 0 ] && echo "all passed" || echo "something failed"
  exit $failed
} | tee "$log"
status=${PIPESTATUS[0]}
rm -f "$log.part"
exit "$status"
