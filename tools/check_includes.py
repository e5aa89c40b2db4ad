#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a folder of src/ includes only the folders it may (docs/internals/code-tour.md) and that every source file
begins with its licence line. Exit code 1 and one line per violation."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

ALLOWED = {
    "core": set(),
    "device": {"core"},
    "comm": {"core"},
    "text": {"core"},
    "vision": {"core"},
    "constrain": {"text", "core"},
    "net": {"core"},
    "hub": {"net", "core"},
    "kvstore": {"core"},
    "backends": {"device", "comm", "core"},
    "model": {"device", "comm", "core"},
    "sampling": {"device", "constrain", "core"},
    "cache": {"kvstore", "device", "core"},
    "engine": {"model", "sampling", "cache", "kvstore", "constrain", "text", "vision", "comm", "device", "core"},
    "cluster": {"engine", "kvstore", "comm", "core"},
    "protocols": {"text", "constrain", "core"},
    "server": {"protocols", "engine", "cluster", "net", "core"},
}
# Wiring: these few files tie layers together and may see more than their folder.
EXTRA = {
    "src/engine/load.h": {"backends", "hub"},
    "src/engine/load.cc": {"backends", "hub"},
    "src/server/text_request.cc": {"constrain"},
    "src/engine/llm.cc": {"backends", "hub", "protocols"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z_]+)/', re.MULTILINE)


def main() -> int:
    problems = []
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in {".h", ".cc", ".cu", ".cuh", ".inc"}:
            continue
        relative = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if not text.startswith("// SPDX-License-Identifier: Apache-2.0\n"):
            problems.append(f"{relative}: the first line must be the SPDX licence line")
        folder = relative.split("/")[1]
        if folder not in ALLOWED:
            continue  # cli may include anything
        allowed = ALLOWED[folder] | {folder, "deepinfer"} | EXTRA.get(relative, set())
        for used in INCLUDE.findall(text):
            if used in ALLOWED and used not in allowed:
                problems.append(f"{relative}: {folder} may not include {used}/")
    for line in problems:
        print(line)
    print(f"include directions: {'ok' if not problems else f'{len(problems)} problems'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
