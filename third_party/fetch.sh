#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts the archives that the lock files name into third_party/cache/, from the Python package index. An archive that is there
# is not fetched again (--check: only says so, by the exit code). Without network and without cache: exit code 1 and one line; the build then leaves the part out.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"

version=$(awk '$1 == "version" { print $2 }' xgrammar.lock)
sha256=$(awk '$1 == "sha256" { print $2 }' xgrammar.lock)
archive=cache/xgrammar-$version.tar.gz
is_good() { [ -f "$archive" ] && echo "$sha256  $archive" | sha256sum --check --status; }
if is_good; then
  exit 0
fi
[ "${1:-}" != --check ] || exit 1

mkdir -p cache
rm -f "$archive"
# No "--no-binary :all:": that would compile the build tools from source as well.
if ! python3 -m pip download -q --disable-pip-version-check "xgrammar==$version" --no-deps --no-binary xgrammar -d cache \
  >cache/fetch.log 2>&1; then
  echo "note: xgrammar $version could not be fetched (third_party/cache/fetch.log); building without structured outputs" >&2
  exit 1
fi
if ! is_good; then
  rm -f "$archive"
  echo "error: the fetched xgrammar $version does not have the SHA-256 of third_party/xgrammar.lock; it was deleted" >&2
  exit 1
fi
