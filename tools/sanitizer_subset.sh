#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/sanitizer_subset.sh address,undefined|thread: builds the unit tests of files, options, threads, kernels and of the
# engine under a sanitizer and runs them. Thread: what shares state between threads. Parsers run under the address and
# undefined behaviour sanitizers in the fuzzers. The engine runs on its checking fake model; T1, T12 and T13 of the
# acceptance tests on a real one (T27).
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit 1
kind=$1
case $kind in
  thread)
    dir=build-thread
    targets=(core_test engine_test engine_acceptance_test server_test)
    filter='^core\..*(Thread|Pool|Metrics|Parallel|AnyThreads|SameBits|PieceCache|Progress)'
    filter+='|^engine\.(EngineCore|AsyncEngine|EngineStats|StatsWriter|StepProfiler|StructuredOutput)|^server\.'
    ;;
  *)
    dir=build-fuzz
    targets=(core_test backends_test engine_test engine_acceptance_test)
    filter='^(core|backends|engine)\.'
    ;;
esac
filter+='|^engine_acceptance\.(T1\.|T12|Steps/T1[23]|T13)'
echo "== $kind sanitizer"
mkdir -p "$dir"
tools/sanitizer_build.sh "$kind" "${targets[@]}" >"$dir/tests.log" 2>&1 || {
  tail -n 30 "$dir/tests.log"
  exit 1
}
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
ctest --test-dir "$dir" -R "$filter" -E '_NOT_BUILT|NanoEngineTest|TinyEngine' --output-on-failure -j"${JOBS:-$(nproc)}" --timeout 600 >"$dir/ctest.log" 2>&1
summary=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests failed out of [0-9]+' "$dir/ctest.log")
if [ -z "$summary" ]; then
  tail -n 40 "$dir/ctest.log"
  exit 1
fi
total=$(sed -E 's/.*out of ([0-9]+).*/\1/' <<<"$summary")
bad=$(sed -E 's/.*passed, ([0-9]+) tests.*/\1/' <<<"$summary")
[ "$bad" = 0 ] || tail -n 200 "$dir/ctest.log"
echo "$((total - bad)) passed, $bad failed"
[ "$bad" = 0 ]
