# SPDX-License-Identifier: Apache-2.0
"""The console script ``deepinfer``: runs the program shipped in the package."""

import os
import pathlib
import sys


def main() -> None:
    """Replaces this process by the program, so that signals and exit codes are its own."""
    program = pathlib.Path(__file__).parent / "bin" / "deepinfer"
    try:
        os.execv(program, ["deepinfer", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"error: cannot run {program}: {error.strerror}; reinstall deepinfer-engine")
