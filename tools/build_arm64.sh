#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cross build for 64-bit ARM and its tests under qemu's user emulation; everything stays in build-arm64/.
#   tools/build_arm64.sh [sysroot|build|test]    (default: test = all three)
# Nothing is installed on this machine: the arm64 libraries are unpacked from Debian's packages into a sysroot of their own.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

DIR=$PWD/build-arm64
SYSROOT=$DIR/sysroot
JOBS=${JOBS:-$(nproc)}
COMMAND=${1:-test}
say() { printf '\033[1m== %s\033[0m\n' "$*"; }

for tool in aarch64-linux-gnu-g++ qemu-aarch64-static cmake ninja dpkg-deb; do
  command -v "$tool" >/dev/null || {
    echo "error: $tool is missing; sudo apt-get install g++-aarch64-linux-gnu qemu-user-static cmake ninja-build" >&2
    exit 1
  }
done

# The libraries that build.sh installs for the machine itself, and the C and C++ run-time libraries.
packages() {
  sed -n '/^BASE_PACKAGES=(/,/)/p; /^TEST_PACKAGES=(/,/)/p' build.sh | tr -s '()= \n' '\n' |
    grep -E '^(lib.*|nlohmann-json3|prometheus-cpp)-dev$' | grep -v libclang
  echo libc6-dev libstdc++-12-dev
}

# A private package index: neither the machine's list of architectures nor its package database is touched.
make_sysroot() {
  local wanted apt=$DIR/apt
  wanted=$(packages | tr '\n' ' ')
  [ "$(cat "$DIR/sysroot.packages" 2>/dev/null)" = "$wanted" ] && return 0
  say "sysroot: $wanted"
  mkdir -p "$apt"/{etc/preferences.d,etc/sources.list.d,lists/partial,cache/archives/partial}
  : >"$apt/status"
  local mirror=${DEBIAN_MIRROR:-http://deb.debian.org}
  local key=/usr/share/keyrings/debian-archive-keyring.gpg
  printf 'deb [arch=arm64 signed-by=%s] %s %s main\n' \
    "$key" "$mirror/debian" bookworm "$key" "$mirror/debian-security" bookworm-security >"$apt/etc/sources.list"
  local options=(-o "Dir::Etc=$apt/etc" -o "Dir::State=$apt" -o "Dir::State::Lists=$apt/lists" -o "Dir::State::status=$apt/status"
    -o "Dir::Cache=$apt/cache" -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Install-Recommends=0
    -o "APT::Sandbox::User=$(id -un)")
  apt-get "${options[@]}" -qq update
  # shellcheck disable=SC2086
  apt-get "${options[@]}" -qq -y --download-only install $wanted >/dev/null
  rm -rf "$SYSROOT"
  mkdir -p "$SYSROOT"
  local package
  for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$SYSROOT"; done
  rm -rf "$apt"
  printf '%s' "$wanted" >"$DIR/sysroot.packages"
}

build() {
  third_party/fetch.sh --check || third_party/fetch.sh || true
  say "building into build-arm64/"
  cmake -S . -B "$DIR" -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-toolchain.cmake -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" -DDEEPINFER_TESTS=ON -DDEEPINFER_TEST_FLAGS=-O1 \
    -DDEEPINFER_XGRAMMAR="${DEEPINFER_XGRAMMAR:-AUTO}" >"$DIR/configure.log" 2>&1 || {
    tail -n 30 "$DIR/configure.log" >&2
    exit 1
  }
  ninja -C "$DIR" -j"$JOBS" deepinfer backends_test model_test
}

run() { qemu-aarch64-static -cpu max -L "$SYSROOT" "$@"; }

run_tests() {
  say "op tests"
  run "$DIR/tests/backends/backends_test" --gtest_brief=1
  say "nano goldens"
  run "$DIR/tests/model/model_test" --gtest_brief=1 \
    --gtest_filter='GoldenPlain.*:GoldenFp32.*:GoldenRelease.*:*GoldenSubLayer*:*GoldenByNumerics*:*Stages*:WeightsGolden.*'
  say "one answer of the demo model"
  run "$DIR/deepinfer" generate --model demo --chat "What is the capital of France?" --temperature 0 --max-tokens 64
}

case "$COMMAND" in
  sysroot) make_sysroot ;;
  build) make_sysroot && build ;;
  test) make_sysroot && build && run_tests ;;
  *)
    echo "usage: tools/build_arm64.sh [sysroot|build|test]" >&2
    exit 2
    ;;
esac
