# SPDX-License-Identifier: Apache-2.0
"""`deepinfer bench serve` against the scripted server: every API, both loops, clients that leave, and what is left afterwards."""

import json
import subprocess

import pytest

from conftest import PROGRAM, TIMEOUT_S, run_scripted


@pytest.fixture(scope="module")
def player():
    """Plays a recorded answer at full speed."""
    with run_scripted("--steps-per-s", "0") as server:
        yield server


def bench(server, *arguments, output_tokens=4096, code=0):
    url = server if isinstance(server, str) else server.url
    done = subprocess.run([PROGRAM, "bench", "serve", "--url", url, "--input-tokens", "16", "--output-tokens", str(output_tokens), "--json", "--quiet",
                           *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


@pytest.mark.parametrize("api", ["chat", "messages", "responses", "completions"])
def test_closed_loop(player, api):
    tool = [] if api == "completions" else ["--with-tool"]
    record = bench(player, "--api", api, "--concurrency", 8, "--num-prompts", 24, *tool)
    assert (record["completed"], record["failed"], record["lost"], record["leaked"]) == (24, 0, 0, 0)
    assert record["by_status"] == {"200": 24}
    assert record["max_concurrent_requests"] == 8
    assert record["connections"] <= 8  # one is there from the first request
    # The same answer for all; its length is that of the server's usage.
    assert record["total_output_tokens"] % 24 == 0 and record["total_output_tokens"] > 24 * 400
    assert record["total_input_tokens"] >= 24 * 16
    for name in ["ttft", "tpot", "itl", "e2el"]:
        assert 0 <= record[f"median_{name}_ms"] <= record[f"p99_{name}_ms"]
    assert record["server_after"]["deepinfer_requests_running"] == 0


def test_open_loop_with_clients_that_leave(player):
    record = bench(player, "--request-rate", 400, "--num-prompts", 60, "--disconnect-rate", 0.5, "--seed", 3, output_tokens=400)
    assert record["left_by_client"] > 10
    assert record["completed"] + record["left_by_client"] == 60
    assert (record["failed"], record["leaked"]) == (0, 0)


def test_idle_connections_and_large_bodies(player):
    record = bench(player, "--num-prompts", 32, "--idle-connections", 40, "--big-bodies", 1, "--big-body-mib", 1)
    assert record["idle"]["opened"] == record["idle"]["open_at_end"] == 40
    assert record["idle"]["bytes_each"] < 64_000
    assert record["big_bodies"]["failed"] == 0
    assert (record["completed"], record["leaked"]) == (32, 0)


def test_failures_are_counted_and_named(scripted):
    with run_scripted("--ttft-ms", "300") as server:
        message = bench(server, "--model-name", "nobody", code=1)
        assert "error: the first request was answered with status 404" in message or "status 400" in message
    assert "nothing answers at 127.0.0.1:" in bench("http://127.0.0.1:9", code=1)
    assert "--url" in bench("https://127.0.0.1", code=2)
    assert "Completions have no tools" in bench(scripted, "--api", "completions", "--with-tool", code=2)
