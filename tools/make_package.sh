#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds dist/deepinfer-VERSION-linux-ARCH.tar.gz: the stripped program, the demo model and the shared libraries it needs
# (all but the C library), and the NVIDIA backend where the options say so, found through an RPATH relative to the program. Runs on any glibc as new as the builder's.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

version=$(sed -nE 's/^project\(deepinfer VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
name=deepinfer-$version-linux-$(uname -m)
stage=build-package/stage/$name
rm -rf "build-package/stage"
cmake -S . -B build-package -G Ninja -DCMAKE_BUILD_TYPE=Release -DDEEPINFER_TESTS=OFF "$@" >/dev/null
ninja -C build-package -j"${JOBS:-$(nproc)}" deepinfer $([[ "$*" == *DEEPINFER_CUDA=ON* ]] && echo deepinfer_cuda)
cmake --install build-package --prefix "$stage" --strip --component Unspecified >/dev/null

mkdir -p "$stage/lib/deepinfer"
ldd "$stage/bin/deepinfer" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | while read -r library; do
  case $(basename "$library") in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.* | ld-linux*) ;;
    *)
      cp -L "$library" "$stage/lib/deepinfer/"
      strip --strip-unneeded "$stage/lib/deepinfer/$(basename "$library")"
      ;;
  esac
done
cp LICENSE THIRD_PARTY.md README.md "$stage/"
mkdir -p dist
tar -C build-package/stage --owner=0 --group=0 --sort=name -czf "dist/$name.tar.gz" "$name"
du -h "dist/$name.tar.gz"
