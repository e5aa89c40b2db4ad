#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/instruction_gate.sh [BUILD_DIR] [--accept]: counts the instructions of every kernel of bench/instruction_probe at the
# AVX2 level under callgrind and compares them with bench/instructions.txt: a kernel that takes over 1 % more fails. --accept
# writes the file anew. The counts are those of one compiler version and of Release flags, so another compiler skips, and so
# does a machine without AVX2. Functions of the C library, which chooses its own by machine, are left out.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit 1
build=build
accept=0
for argument in "$@"; do
  case $argument in
    --accept) accept=1 ;;
    *) build=$argument ;;
  esac
done
baseline=bench/instructions.txt
probe=$build/bench/instruction_probe
echo "== instruction counts (AVX2, callgrind)"
skip() {
  echo "instruction counts: skipped, $1"
  echo "0 passed, 0 failed"
  exit 0
}
[ "$(uname -m)" = x86_64 ] || skip "the baseline is for x86-64"
grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo || skip "this machine has no AVX2"
cxx=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt" 2>/dev/null)
compiler=$("${cxx:-c++}" --version 2>/dev/null | head -n 1 | sed -E 's/.*\(([^)]*)\).*/\1/')
[ $accept = 1 ] || grep -qxF "# compiler: $compiler" "$baseline" || skip "the baseline is of another compiler than $compiler"
if ! command -v valgrind >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends valgrind >/dev/null
  fi
  command -v valgrind >/dev/null || skip "valgrind is not installed (apt-get install valgrind)"
fi
ninja -C "$build" instruction_probe >"$build/instruction_probe.log" 2>&1 || {
  tail -n 20 "$build/instruction_probe.log"
  echo "0 passed, 1 failed"
  exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# count NAME: "NAME INSTRUCTIONS" into $work/NAME.count.
count() {
  DEEPINFER_CPU_ISA=avx2 valgrind --tool=callgrind --callgrind-out-file="$work/$1.out" --compress-strings=no --compress-pos=no \
    --collect-atstart=no '--toggle-collect=*CountedRun*' "$probe" "$1" >"$work/$1.log" 2>&1 || return
  # A cost line begins with a digit; the one after calls= is the callee's and is not counted again.
  awk -v name="$1" '/^ob=/ { ours = /instruction_probe$/ } /^calls=/ { getline; next } /^[0-9]/ && ours { sum += $2 }
    END { printf "%s %d\n", name, sum }' "$work/$1.out" >"$work/$1.count"
}
names=$("$probe")
running=0
for name in $names; do
  count "$name" &
  running=$((running + 1))
  [ $((running % $(nproc))) = 0 ] && wait
done
wait

if [ $accept = 1 ]; then
  {
    echo "# Instructions of the kernels at the AVX2 level; tools/instruction_gate.sh compares, its --accept writes this file."
    echo "# compiler: $compiler"
    for name in $names; do cat "$work/$name.count"; done
  } >"$baseline"
  cat "$baseline"
  exit 0
fi
passed=0
failed=0
for name in $names; do
  now=$(cut -d' ' -f2 "$work/$name.count" 2>/dev/null)
  was=$(sed -n "s/^$name //p" "$baseline")
  if [ -z "$now" ] || [ "$now" = 0 ]; then
    echo "$name: not counted"
    tail -n 5 "$work/$name.log"
    failed=$((failed + 1))
  elif [ -z "$was" ]; then
    echo "$name: $now instructions, not in $baseline"
    failed=$((failed + 1))
  else
    line=$(awk -v now="$now" -v was="$was" -v name="$name" 'BEGIN { printf "%-12s %10d instructions, %+.2f %%", name, now, 100 * (now / was - 1) }')
    if [ $((now * 100)) -gt $((was * 101)) ]; then
      echo "$line: more than 1 % above $baseline"
      failed=$((failed + 1))
    else
      echo "$line"
      passed=$((passed + 1))
    fi
  fi
done
[ $failed = 0 ] || echo "If the change is meant: tools/instruction_gate.sh $build --accept, and commit $baseline with the reason."
echo "$passed passed, $failed failed"
[ $failed = 0 ]
