#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make_package.sh [CMAKE OPTIONS]: builds two archives that unpack into one folder:
#   dist/deepinfer-VERSION-linux-ARCH.tar.gz  the stripped program and the shared libraries it needs (all but the C library), and
#                                             the NVIDIA backend where the options say so, found through an RPATH relative to the
#                                             program. Runs on any glibc as new as the builder's.
#   dist/deepinfer-VERSION-demo-model.tar.gz  the demo model, which is twice as large as everything else.
# The first stays below 12 MiB with at most one GPU architecture, so that it travels anywhere.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

version=$(sed -nE 's/^project\(deepinfer VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
name=deepinfer-$version-linux-$(uname -m)
stage=build-package/stage/$name
rm -rf "build-package/stage"
# Without RocksDB: 3 MiB, and the engine has no use for the block store yet.
cmake -S . -B build-package -G Ninja -DCMAKE_BUILD_TYPE=Release -DDEEPINFER_TESTS=OFF -DDEEPINFER_ROCKSDB=OFF "$@" >/dev/null
targets=(deepinfer)
[[ "$*" == *DEEPINFER_CUDA=ON* ]] && targets+=(deepinfer_cuda)
ninja -C build-package -j"${JOBS:-$(nproc)}" "${targets[@]}"
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
model=$name/share/deepinfer/models
pack() { tar -C build-package/stage --owner=0 --group=0 --sort=name "${@:2}" -c | gzip -9n >"$1"; }
pack "dist/$name.tar.gz" --exclude="$model" "$name"
pack "dist/deepinfer-$version-demo-model.tar.gz" "$model"
for archive in "dist/$name.tar.gz" "dist/deepinfer-$version-demo-model.tar.gz"; do
  echo "$archive: $(awk -v bytes="$(stat -c %s "$archive")" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }')"
done
if [[ "$*" != *DEEPINFER_CUDA_ARCHS=*\;* ]] && [ "$(stat -c %s "dist/$name.tar.gz")" -gt $((12 << 20)) ]; then
  echo "error: dist/$name.tar.gz is larger than 12 MiB" >&2
  exit 1
fi
