#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The one entry point for building, trying and testing DeepInfer. `./build.sh help` lists the commands.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"

BUILD_TYPE=Release
SANITIZE=
ALL_ARCHS=0
COMMAND=build
ARGS=()

usage() {
  cat <<'TXT'
usage: ./build.sh [COMMAND] [OPTIONS]
  (no command)           build the program, library, tests and benchmarks into build/
  demo                   set up everything and let the embedded model answer a question
  test                   set up everything, build, run every test, then each fuzzer for 10 s
  fuzz NAME --seconds N  run one fuzzer by hand (log in bench/results/)
  soak NAME --seconds N  run one long test by hand: engine, streaming, or slice (has one length); log in bench/results/
  package                stripped self-contained tarball in dist/
  wheel                  Python wheel in dist/
  clean                  remove build folders, .venv and dist/
options: --debug  --sanitize=address|thread|undefined  --all-archs
environment: DEEPINFER_ACCELERATOR=cpu|nvidia|ascend (default: cpu)  JOBS=N
TXT
}

while [ $# -gt 0 ]; do
  case "$1" in
    build | demo | test | package | wheel | clean | help) COMMAND=$1 ;;
    fuzz | soak) COMMAND=$1 ;;
    --debug) BUILD_TYPE=Debug ;;
    --sanitize=address | --sanitize=thread | --sanitize=undefined | --sanitize=address,undefined) SANITIZE=${1#*=} ;;
    --all-archs) ALL_ARCHS=1 ;;
    -h | --help) COMMAND=help ;;
    *)
      if [ "$COMMAND" = fuzz ] || [ "$COMMAND" = soak ]; then
        ARGS+=("$1")
      else
        echo "error: unknown argument $1; see ./build.sh help" >&2
        exit 2
      fi
      ;;
  esac
  shift
done

JOBS=${JOBS:-$(nproc)}
say() { printf '\033[1m== %s\033[0m\n' "$*"; }

# --- packages -------------------------------------------------------------------------------------------------------------
BASE_PACKAGES=(g++ cmake ninja-build pkg-config git ca-certificates libfmt-dev libspdlog-dev libcli11-dev libtomlplusplus-dev
  nlohmann-json3-dev libssl-dev prometheus-cpp-dev libboost-dev liburing-dev libxxhash-dev librocksdb-dev libjpeg62-turbo-dev
  libpng-dev libwebp-dev zlib1g-dev)
TEST_PACKAGES=(libgtest-dev libgmock-dev libbenchmark-dev python3 python3-dev python3-venv python3-pip clang-16
  libclang-rt-16-dev mold)
PIP_PACKAGES=(nanobind scikit-build-core pytest build jsonschema openai anthropic schemathesis pyyaml)

need_packages() {
  local missing=()
  for p in "$@"; do
    # shellcheck disable=SC2016
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if ! command -v apt-get >/dev/null; then
    echo "error: these packages are needed (Debian names): ${missing[*]}" >&2
    exit 1
  fi
  if [ "$(id -u)" != 0 ]; then
    echo "error: packages are missing; run this, then start again:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# The sources that are in no package, once (third_party/README.md). Without network the build does without them.
need_third_party() {
  third_party/fetch.sh --check && return 0
  need_packages python3 python3-pip
  say "fetching xgrammar"
  third_party/fetch.sh || true
}

need_venv() {
  if [ ! -x .venv/bin/python ] || ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    say "creating .venv"
    rm -rf .venv
    /usr/bin/python3 -m venv .venv
  fi
  if ! .venv/bin/python -c 'import nanobind, scikit_build_core, pytest, build, jsonschema, openai, anthropic, schemathesis, yaml' 2>/dev/null; then
    say "installing Python packages: ${PIP_PACKAGES[*]}"
    .venv/bin/python -m pip install -q --disable-pip-version-check "${PIP_PACKAGES[@]}"
  fi
}

# --- accelerator ----------------------------------------------------------------------------------------------------------
CUDA_OPTIONS=(-DDEEPINFER_CUDA=OFF)
accelerator_options() {
  local archs=90a
  [ "$ALL_ARCHS" = 1 ] && archs='90a;100a;120a'
  case "${DEEPINFER_ACCELERATOR:-cpu}" in
    cpu)
      [ "$ALL_ARCHS" = 0 ] || echo "note: --all-archs: only with DEEPINFER_ACCELERATOR=nvidia" >&2
      ;;
    nvidia)
      if [ -z "$(PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda-13.0/bin" command -v nvcc)" ]; then
        echo "error: DEEPINFER_ACCELERATOR=nvidia needs nvcc (CUDA toolkit 12.8 or newer); install it or set CUDA_HOME" >&2
        exit 1
      fi
      CUDA_OPTIONS=(-DDEEPINFER_CUDA=ON "-DDEEPINFER_CUDA_ARCHS=$archs")
      ;;
    ascend)
      echo "note: DEEPINFER_ACCELERATOR=ascend: this version has no Ascend backend; building the others" >&2
      ;;
    *)
      echo "error: DEEPINFER_ACCELERATOR must be cpu, nvidia or ascend, got \"$DEEPINFER_ACCELERATOR\"" >&2
      exit 2
      ;;
  esac
  unset DEEPINFER_ACCELERATOR  # it also means --device to the program
}

# --- building -------------------------------------------------------------------------------------------------------------
build_dir() {
  local dir=build
  [ "$BUILD_TYPE" = Debug ] && dir=build-debug
  case "$SANITIZE" in
    "") ;;
    address*) dir=build-asan ;;
    thread) dir=build-tsan ;;
    undefined) dir=build-ubsan ;;
  esac
  echo $dir
}

# configure DIR [cmake options]; ninja's own progress is the progress display.
configure() {
  local dir=$1
  shift
  cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE="$BUILD_TYPE" -DDEEPINFER_SANITIZE="${SANITIZE/,/;}" \
    -DDEEPINFER_TEST_FLAGS=-O1 "${CUDA_OPTIONS[@]}" "$@" >"$dir.configure.log" 2>&1 || {
    tail -n 30 "$dir.configure.log" >&2
    exit 1
  }
  mv "$dir.configure.log" "$dir/configure.log"
}

FUZZ_DIR=build-fuzz
build_fuzzers() {
  JOBS=$JOBS tools/sanitizer_build.sh address,undefined fuzzers
}

# fuzz_one NAME SECONDS: the corpus first, then new inputs. Findings are left in the fuzz build folder.
fuzz_one() {
  local name=$1 seconds=$2
  local work=$FUZZ_DIR/work/$name
  mkdir -p "$work" "tests/fuzz/corpus/$name"
  "$FUZZ_DIR/tests/fuzz/${name}_fuzz" -timeout=20 -rss_limit_mb=2048 -max_len=16384 -max_total_time="$seconds" \
    -artifact_prefix="$work/" -print_final_stats=1 "$work" "tests/fuzz/corpus/$name"
}

run_test() {
  need_packages "${BASE_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
  need_venv
  need_third_party
  local dir passed=0 failed=0 summary
  dir=$(build_dir)
  say "building ($BUILD_TYPE) into $dir"
  configure "$dir" -DDEEPINFER_TESTS=ON -DDEEPINFER_UNITY=TESTS -DDEEPINFER_BENCH=ON -DDEEPINFER_EXAMPLES=ON -DDEEPINFER_PYTHON=ON \
    -DPython_EXECUTABLE="$PWD/.venv/bin/python"
  ninja -C "$dir" -j"$JOBS"
  say "style: include directions"
  .venv/bin/python tools/check_includes.py
  say "unit, golden and end-to-end tests"
  ctest --test-dir "$dir" --output-on-failure -j"$JOBS" >"$dir/ctest.log" 2>&1 || true
  grep -E "tests passed|Failed|\*\*\*|Not Run|Skipped" "$dir/ctest.log" || true
  summary=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests failed out of [0-9]+' "$dir/ctest.log" || true)
  if [ -z "$summary" ]; then
    tail -n 40 "$dir/ctest.log"
    echo "error: the test runner did not finish" >&2
    exit 1
  fi
  local total bad
  total=$(sed -E 's/.*out of ([0-9]+).*/\1/' <<<"$summary")
  bad=$(sed -E 's/.*passed, ([0-9]+) tests.*/\1/' <<<"$summary")
  [ "$bad" = 0 ] || sed -n '/^[ 0-9/]*Test.*\*\*\*/,/^$/p' "$dir/ctest.log" | head -n 400
  passed=$((passed + total - bad))
  failed=$((failed + bad))
  if [ -z "$SANITIZE" ]; then
    say "fuzzers: corpus, then 10 s each"
    build_fuzzers
    local fuzzer name names=()
    for fuzzer in "$FUZZ_DIR"/tests/fuzz/*_fuzz; do names+=("$(basename "$fuzzer" _fuzz)"); done
    # One a core; each leaves its log and its exit status.
    for name in "${names[@]}"; do
      while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n || true; done
      (
        status=0
        fuzz_one "$name" 10 >"$FUZZ_DIR/$name.log" 2>&1 || status=$?
        echo "$status" >"$FUZZ_DIR/$name.status"
      ) &
    done
    wait
    for name in "${names[@]}"; do
      if [ "$(cat "$FUZZ_DIR/$name.status")" = 0 ]; then
        passed=$((passed + 1))
        echo "fuzz $name: ok ($(grep -E 'number_of_executed_units' "$FUZZ_DIR/$name.log" | grep -oE '[0-9]+$') inputs)"
      else
        failed=$((failed + 1))
        echo "fuzz $name: FAILED"
        tail -n 40 "$FUZZ_DIR/$name.log"
      fi
    done
  fi
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}

case "$COMMAND" in
  help) usage ;;
  clean)
    rm -rf build build-* .venv dist
    ;;
  build)
    accelerator_options
    need_packages "${BASE_PACKAGES[@]}" libgtest-dev libgmock-dev libbenchmark-dev
    need_third_party
    dir=$(build_dir)
    say "building ($BUILD_TYPE${SANITIZE:+, $SANITIZE}) into $dir"
    configure "$dir" -DDEEPINFER_BENCH=ON
    ninja -C "$dir" -j"$JOBS"
    ;;
  demo)
    accelerator_options
    need_packages "${BASE_PACKAGES[@]}"
    need_third_party
    say "building"
    configure build -DDEEPINFER_TESTS="$([ -d /usr/include/gtest ] && echo ON || echo OFF)"
    ninja -C build -j"$JOBS" deepinfer
    say 'deepinfer generate --chat "What is the capital of France?"'
    build/deepinfer generate --model demo --chat "What is the capital of France?" --temperature 0 --max-tokens 64
    ;;
  test)
    accelerator_options
    run_test
    ;;
  fuzz)
    need_packages "${BASE_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
    name=${ARGS[0]:-}
    seconds=60
    [ "${ARGS[1]:-}" = --seconds ] && seconds=${ARGS[2]:?--seconds needs a number}
    if [ -z "$name" ] || [ ! -f "tests/fuzz/${name}_fuzz.cc" ]; then
      echo "error: fuzz needs one of: $(find tests/fuzz -name "*_fuzz.cc" -printf "%f " | sed "s/_fuzz.cc//g")" >&2
      exit 2
    fi
    build_fuzzers
    mkdir -p bench/results
    fuzz_one "$name" "$seconds" 2>&1 | tee "bench/results/fuzz-$name.log"
    exit "${PIPESTATUS[0]}"
    ;;
  soak)
    name=${ARGS[0]:-}
    if [ "$name" = streaming ]; then
      [ "${ARGS[1]:-}" = --seconds ] && export DEEPINFER_SOAK_SECONDS=${ARGS[2]:?--seconds needs a number}
      need_packages "${BASE_PACKAGES[@]}" python3
      need_third_party
      dir=$(build_dir)
      configure "$dir"
      ninja -C "$dir" -j"$JOBS" deepinfer make_slice
      mkdir -p bench/results
      exec tools/soak_streaming.sh "$dir/deepinfer" "$dir/tools/make_slice" bench/results/soak-streaming.log
    fi
    case "$name" in
      slice) targets=(model/slice/slice_test) filter='*' ;;
      # Random traffic for --seconds on each of two engine layers and on a real model, and memory over 50,000 requests; see
      # docs/internals/acceptance.md.
      engine)
        targets=(engine/engine_test engine/acceptance/engine_acceptance_test) filter='AsyncEngineSoak.*:EngineSoak.*:EngineCore.AbortStorm'
        export DEEPINFER_SOAK_REQUESTS=${DEEPINFER_SOAK_REQUESTS:-50000}
        ;;
      *)
        echo "error: soak needs one of: engine slice streaming" >&2
        exit 2
        ;;
    esac
    [ "${ARGS[1]:-}" = --seconds ] && export DEEPINFER_SOAK_SECONDS=${ARGS[2]:?--seconds needs a number}
    export DEEPINFER_SOAK_SECONDS=${DEEPINFER_SOAK_SECONDS:-300}
    need_packages "${BASE_PACKAGES[@]}" libgtest-dev libgmock-dev
    need_third_party
    dir=$(build_dir)
    configure "$dir" -DDEEPINFER_TESTS=ON
    ninja -C "$dir" -j"$JOBS" "${targets[@]##*/}"
    mkdir -p bench/results
    (
      status=0
      for target in "${targets[@]}"; do
        "$dir/tests/$target" --gtest_filter="$filter" 2>&1 || status=1
      done
      exit $status
    ) | tee "bench/results/soak-$name${SANITIZE:+-$SANITIZE}.log"
    exit "${PIPESTATUS[0]}"
    ;;
  wheel)
    need_packages "${BASE_PACKAGES[@]}" python3 python3-dev python3-venv python3-pip
    need_venv
    need_third_party
    .venv/bin/python -m build --wheel --outdir dist .
    ;;
  package)
    accelerator_options
    need_packages "${BASE_PACKAGES[@]}"
    need_third_party
    tools/make_package.sh "${CUDA_OPTIONS[@]}"
    ;;
esac
