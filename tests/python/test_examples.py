# SPDX-License-Identifier: Apache-2.0
"""Every Python example runs on the demo model and prints what it should."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["offline_inference.py"], "Paris"),
        (["chat.py", "What is the capital of France?"], "Paris"),
        (["tool_call.py"], "finish reason:"),
    ],
)
def test_example(source_dir, arguments, expected):
    script, *rest = arguments
    environment = {key: value for key, value in os.environ.items() if key != "DEEPINFER_HF_MODEL_DIR"}
    result = subprocess.run(
        [sys.executable, source_dir / "examples" / script, *rest],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert expected in result.stdout
    assert result.stderr == ""
