#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_tree_size.py [ROOT] [LIMIT_MIB]: what travels to a machine with a GPU (all tracked files, as they lie in the working tree)
must stay below a limit. Exit codes: 0 below, 1 above, 77 (skipped) where there is no git repository to ask."""

import os
import subprocess
import sys

SKIPPED = 77


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    limit = float(sys.argv[2]) * 2**20 if len(sys.argv) > 2 else 60 * 2**20
    if not os.path.exists(os.path.join(root, ".git")):
        print(f"skipped: {root} is no git checkout, so nothing says which of its files travel")
        return SKIPPED
    # The owner of a mounted checkout may be somebody else.
    command = ["git", "-c", f"safe.directory={os.path.abspath(root)}", "-C", root, "ls-files", "-z"]
    try:
        listing = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error} {getattr(error, 'stderr', b'').decode().strip()}", file=sys.stderr)
        return 1
    sizes = {}
    for name in filter(None, listing.stdout.decode("utf-8", "surrogateescape").split("\0")):
        path = os.path.join(root, name)
        if os.path.lexists(path):  # removed, not committed yet
            sizes[name] = os.lstat(path).st_size
    total = sum(sizes.values())
    print(f"{len(sizes)} tracked files, {total / 2**20:.1f} MiB of at most {limit / 2**20:.0f} MiB")
    if total <= limit:
        return 0
    for name in sorted(sizes, key=sizes.get, reverse=True)[:10]:
        print(f"  {sizes[name] / 2**20:6.2f} MiB  {name}")
    print("error: the tracked files are too large to travel; compress or leave out the largest", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
