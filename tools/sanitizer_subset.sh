#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/sanitizer_subset.sh address,undefined|thread: builds the unit tests of files, options, threads, kernels and of the
# engine under a sanitizer and runs them. Thread: what shares state between threads. Parsers run under the address and
# undefined behaviour sanitizers in the fuzzers. The engine runs on its checking fake model; T1, T12 and T13 of the
# acceptance tests on a real one (T27).
# Each program runs as one process per core, with its share of the tests: a process a test costs more than most tests.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit 1
kind=$1
# "PROGRAM:FILTER", a GoogleTest filter.
case $kind in
  thread)
    dir=build-thread
    programs=("core:*Thread*:*Pool*:*Metrics*:*Parallel*:*AnyThreads*:*SameBits*:*PieceCache*:*Progress*"
      "engine:EngineCore*:AsyncEngine*:EngineStats*:StatsWriter*:StepProfiler*:StructuredOutput*-*NanoEngineTest*:*TinyEngine*" "server:*" "engine/traffic:*")
    ;;
  *)
    dir=build-fuzz
    programs=("core:*" "backends:*" "engine:*-*NanoEngineTest*:*TinyEngine*" "engine/traffic:*")
    ;;
esac
jobs=${JOBS:-$(nproc)}
test_name() { tr / _ <<<"${1%%:*}_test"; }
echo "== $kind sanitizer"
mkdir -p "$dir"
targets=()
for program in "${programs[@]}"; do targets+=("$(test_name "$program")"); done
tools/sanitizer_build.sh "$kind" "${targets[@]}" >"$dir/tests.log" 2>&1 || {
  tail -n 30 "$dir/tests.log"
  exit 1
}
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
export GTEST_TOTAL_SHARDS=$jobs
passed=0
failed=0
for program in "${programs[@]}"; do
  name=$(test_name "$program")
  pids=()
  for ((shard = 0; shard < jobs; shard++)); do
    GTEST_SHARD_INDEX=$shard timeout 900 "$dir/tests/${program%%:*}/$name" --gtest_filter="${program#*:}" \
      >"$dir/$name.$shard.log" 2>&1 &
    pids+=($!)
  done
  for ((shard = 0; shard < jobs; shard++)); do
    log=$dir/$name.$shard.log
    status=0
    wait "${pids[$shard]}" || status=$?
    passed=$((passed + $(grep -c '^\[       OK \]' "$log")))
    bad=$(grep -c '^\[  FAILED  \] .* ([0-9]* ms)$' "$log")
    failed=$((failed + bad))
    if [ "$status" != 0 ]; then
      # Ended by a sanitizer, a signal or the time limit: the test it was in has failed.
      [ "$bad" != 0 ] || failed=$((failed + 1))
      echo "$name: ended with status $status"
      tail -n 100 "$log"
    fi
  done
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
