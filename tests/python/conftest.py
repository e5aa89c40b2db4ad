# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib

import pytest

import deepinfer


@pytest.fixture(scope="session")
def source_dir() -> pathlib.Path:
    return pathlib.Path(os.environ.get("DEEPINFER_SOURCE_DIR", pathlib.Path(__file__).parents[2]))


@pytest.fixture(scope="session")
def llm():
    with deepinfer.LLM("demo") as engine:
        yield engine


@pytest.fixture(scope="session")
def greedy_cases(source_dir):
    return json.loads((source_dir / "tests/golden/tiny/greedy.json").read_text(encoding="utf-8"))
