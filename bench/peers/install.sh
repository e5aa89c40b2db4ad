#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the libraries that bench/peers/compare.py measures, by package name, into DIR (default build/peers):
#   ggml       from the source package llama-cpp-python: only its ggml part is compiled, for this machine
#   torch      with oneDNN; its package also brings CUDA libraries (several GB), which are not used
#   kt-kernel  its extension module only; the package pins another torch, which its kernels do not need
#   bench/peers/install.sh [DIR] [ggml] [torch] [kt-kernel]     JOBS=N compilers (default 1)
# GGML_CMAKE_FLAGS adds options for ggml's build, for example a build for another machine:
#   GGML_CMAKE_FLAGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON"
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
dir=${1:-build/peers}
shift || true
peers=${*:-ggml torch kt-kernel}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
python=$dir/venv/bin/python
[ -x "$python" ] || python3 -m venv "$dir/venv"
pip() { "$python" -m pip --disable-pip-version-check -q "$@"; }
wants() { case " $peers " in *" $1 "*) ;; *) return 1 ;; esac }
# note PEER TEXT: what compare.py prints for a peer that is not there.
note() { printf '%s\n' "$2" >"$dir/$1.unavailable"; echo "$1: $2" >&2; }

if wants ggml; then
  rm -f "$dir/ggml.unavailable"
  if pip download --no-deps --no-build-isolation --no-binary llama-cpp-python -d "$dir/packages" llama-cpp-python; then
    package=$(ls -t "$dir"/packages/llama_cpp_python-*.tar.gz | head -n 1)
    source=$(basename "$package" .tar.gz)/vendor/llama.cpp/ggml
    tar -C "$dir" -xzf "$package" "$source"
    # The source package leaves this template out.
    touch "$dir/$source/ggml.pc.in"
    # shellcheck disable=SC2086
    if cmake -S "$dir/$source" -B "$dir/ggml" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF \
      ${GGML_CMAKE_FLAGS:-} >"$dir/ggml.log" 2>&1 && ninja -C "$dir/ggml" -j"${JOBS:-1}" >>"$dir/ggml.log" 2>&1; then
      echo "$source" | sed -E 's/^([a-z_]+)-([0-9.]+).*/\1 \2/' >"$dir/ggml.version"
    else
      note ggml "does not compile: $(grep -iE 'error' "$dir/ggml.log" | head -n 1)"
    fi
  else
    note ggml "pip cannot download llama-cpp-python"
  fi
fi
if wants torch; then
  rm -f "$dir/torch.unavailable"
  pip install torch numpy >"$dir/torch.log" 2>&1 || note torch "pip install torch: $(tail -n 1 "$dir/torch.log")"
fi
if wants kt-kernel; then
  rm -f "$dir/kt-kernel.unavailable"
  pip install --no-deps kt-kernel >"$dir/kt-kernel.log" 2>&1 || note kt-kernel "pip install kt-kernel: $(tail -n 1 "$dir/kt-kernel.log")"
fi
"$python" - <<'PY'
from importlib.metadata import PackageNotFoundError, version
for name in ("torch", "kt-kernel"):
    try:
        print(name, version(name))
    except PackageNotFoundError:
        print(name, "not installed")
PY
cat "$dir/ggml.version" 2>/dev/null || echo "ggml not installed"
