# SPDX-License-Identifier: Apache-2.0
"""Case 15 of tests/golden/cases but for its disk: the client goes away, work stops, and everything comes back. Nothing here waits for a
time; what has no event is waited for by the server's own counters."""

import json
import os

import pytest
from conftest import parse_response, run_program, sse_events, wait_until
from test_serve import CHAT, ENDLESS, PATH, bearer, gauges
from test_http import post

COMPLETIONS = "/v1/completions"
# A prefill of many steps.
LONG = {"model": "deepseek-flash", "prompt": [1000 + i * 7919 % 3000 for i in range(15000)], "max_tokens": 4, "cache_mode": "off"}


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    access = tmp_path_factory.mktemp("log") / "access.log"
    # Short steps, so that a long prefill has many.
    with run_program("--access-log", access, "--api-key", "a-secret-key", "--max-streams-per-key", 2, "--max-num-batched-tokens", 256) as server:
        server.access = access
        yield server


def lines(server):
    return [json.loads(line) for line in server.access.read_text().splitlines() if '"client_disconnected"' in line] if server.access.exists() else []


def start(server, body, path=COMPLETIONS):
    sock = server.connect()
    sock.sendall(post(body, "x-api-key: a-secret-key\r\n", path))
    return sock


def read_events(sock, count):
    data = b""
    while data.count(b"data: ") < count:
        piece = sock.recv(1 << 16)
        assert piece
        data += piece


def has_begun(server):
    """It holds blocks of the cache: its prefill is under way, or it decodes."""
    return server.metric("deepinfer_kv_blocks_used") > 0


def come_to_rest(server):
    """Nothing runs or waits, no block is held: as before each test."""
    wait_until(lambda: gauges(server) == [0, 0, 0])


def come_back(server, num_lines):
    wait_until(lambda: len(lines(server)) == num_lines)
    come_to_rest(server)
    assert all(line["status"] in (200, 499) for line in lines(server))
    # Both streams of the key are free again.
    for _ in range(2):
        assert server.request("POST", PATH, {**CHAT, "max_tokens": 1}, bearer("a-secret-key"))[0] == 200
    come_to_rest(server)


def test_while_a_stream_decodes(logged):
    count = len(lines(logged))
    with start(logged, {**ENDLESS, "stream": True, "max_tokens": 4096}) as sock:
        read_events(sock, 3)
    come_back(logged, count + 1)
    assert lines(logged)[-1]["status"] == 200 and 3 <= lines(logged)[-1]["output_tokens"] < 4096


@pytest.mark.parametrize("stream", [True, False])
def test_during_a_long_prefill(logged, stream):
    count = len(lines(logged))
    with start(logged, {**LONG, "stream": stream}):
        wait_until(lambda: has_begun(logged))
    come_back(logged, count + 1)
    assert lines(logged)[-1]["output_tokens"] == 0  # it was not computed to its end
    with start(logged, {**LONG, "stream": stream}):  # at once
        pass
    come_back(logged, count + 2)


def test_without_a_stream(logged):
    count = len(lines(logged))
    with start(logged, {**ENDLESS, "stream": False, "max_tokens": 4096}):
        wait_until(lambda: has_begun(logged))
    come_back(logged, count + 1)


def test_while_queued():
    with run_program("--max-num-seqs", 1) as server:
        with server.connect() as first, server.connect() as second, server.connect() as third:
            first.sendall(post({**ENDLESS, "stream": True}, "", COMPLETIONS))
            read_events(first, 1)
            second.sendall(post({**CHAT, "stream": True}))
            third.sendall(post({**CHAT, "stream": False}))
            wait_until(lambda: server.metric("deepinfer_requests_waiting") == 2)
            second.close()
            third.close()
            wait_until(lambda: server.metric("deepinfer_requests_waiting") == 0)
            wait_until(lambda: "".join(server.log).count("client_disconnected") == 2)
            read_events(first, 1)  # the one that runs does not notice
        come_to_rest(server)
        assert server.request("POST", PATH, CHAT)[0] == 200


@pytest.mark.parametrize("stream", [True, False])
def test_half_closed(logged, stream):
    count = len(lines(logged))
    status, _, body = parse_response(logged.raw(post({**CHAT, "stream": stream}, "x-api-key: a-secret-key\r\n"), shut=True))
    assert status == 200
    text = "".join(e[1]["choices"][0]["delta"].get("content") or "" for e in sse_events(body)[:-1]) if stream else body["choices"][0]["message"]["content"]
    assert text == "The capital of France is Paris."
    assert len(lines(logged)) == count


def test_hundred_times(logged):
    """Streams, plain requests and prefills in turn; memory, open files, sequences, blocks and the key's streams stay as they were."""
    def resources():
        with open(f"/proc/{logged.process.pid}/status") as status:
            memory = int(next(line for line in status if line.startswith("VmRSS")).split()[1])
        return memory, len(os.listdir(f"/proc/{logged.process.pid}/fd"))

    def leave(i):
        if i % 3 == 0:
            with start(logged, {**ENDLESS, "stream": True}) as sock:
                read_events(sock, 3)
        elif i % 3 == 1:
            with start(logged, {**ENDLESS, "stream": False}):
                wait_until(lambda: has_begun(logged))
        else:
            with start(logged, {**LONG, "stream": True}):
                pass
        wait_until(lambda: len(lines(logged)) == count + i + 1)
        come_to_rest(logged)

    count = len(lines(logged))
    for i in range(6):
        leave(i)
    memory, files = resources()
    for i in range(6, 106):
        leave(i)
    come_back(logged, count + 106)
    wait_until(lambda: resources()[1] <= files)
    assert resources()[0] - memory < 16 << 10
