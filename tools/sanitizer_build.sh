#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/sanitizer_build.sh address,undefined|thread TARGET...: builds targets under a sanitizer, in build-fuzz or build-thread.
# The fuzzers and the tests under the address and undefined behaviour sanitizers share one build of the library, by Clang
# because libFuzzer needs it; GCC does the thread sanitizer. -O1 compiles faster and is fast enough.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
kind=$1
shift
case $kind in
  address,undefined)
    dir=build-fuzz
    options=(-DCMAKE_CXX_COMPILER=clang++-16 -DDEEPINFER_FUZZ=ON)
    ;;
  thread)
    dir=build-thread
    options=()
    ;;
  *)
    echo "error: tools/sanitizer_build.sh needs address,undefined or thread" >&2
    exit 2
    ;;
esac
cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" -DDEEPINFER_TESTS=ON \
  -DDEEPINFER_XGRAMMAR=OFF -DDEEPINFER_UNITY=ON -DDEEPINFER_SANITIZE="${kind/,/;}" "${options[@]}" >"$dir.configure.log" 2>&1 || {
  tail -n 30 "$dir.configure.log" >&2
  exit 1
}
mv "$dir.configure.log" "$dir/configure.log"
ninja -C "$dir" -j"${JOBS:-$(nproc)}" "$@"
