#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of README.md and docs/: every command in a ```console block must print what stands below it.

python3 docs/check_examples.py [BUILD_DIR]     # default: build

The commands of one page share a folder and run in order in one kind of shell, with BUILD_DIR/deepinfer on the path. Blocks
whose output depends on the machine (times, memory) are plain ``` blocks and are not run.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def commands(block: str) -> list[tuple[str, str]]:
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, output.rstrip("\n")) for command, _, output in (part.partition("\n") for part in parts)]


def check_page(page: pathlib.Path, build: pathlib.Path) -> tuple[int, int]:
    """(commands run, commands that differ)"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DEEPINFER_")}
    environment["PATH"] = f"{build}:{environment['PATH']}"
    num_run = num_bad = 0
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "build").symlink_to(build)
        (pathlib.Path(folder) / "tests").symlink_to(ROOT / "tests")
        definitions = ""  # functions and variables that earlier commands of the page made
        for block in re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for command, expected in commands(block):
                result = subprocess.run(
                    ["bash", "-c", definitions + command],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if re.match(r"\w+(\(\) \{|=\S*$|=\$\()", command):
                    definitions += command + "\n"
                output = (result.stdout + result.stderr).rstrip("\n")
                num_run += 1
                if output != expected:
                    num_bad += 1
                    print(f"{page.relative_to(ROOT)}: {command}\n  expected: {expected}\n  printed:  {output}")
    return num_run, num_bad


def main() -> int:
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build").resolve()
    total = bad = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        num_run, num_bad = check_page(page, build)
        total += num_run
        bad += num_bad
    print(f"{total - bad} passed, {bad} failed")
    return 1 if bad or not total else 0


if __name__ == "__main__":
    sys.exit(main())
