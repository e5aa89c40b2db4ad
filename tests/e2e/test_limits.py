# SPDX-License-Identifier: Apache-2.0
"""The table of limits (operations.md 1.3): the largest allowed value passes, one more gets the status of the table. Sizes of bodies
and heads, depth and time limits: test_http.py. Concurrent requests and the queue: test_serve.py."""

import pytest
from test_auth import BODIES

CHAT, RESPONSES, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"


def chat_tool(i):
    return {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": {}}}}


TOOLS = {
    CHAT: chat_tool,
    RESPONSES: lambda i: {"type": "function", "name": f"f{i}", "parameters": {"type": "object", "properties": {}}},
    MESSAGES: lambda i: {"name": f"f{i}", "input_schema": {"type": "object", "properties": {}}},
}
STOPS = {CHAT: "stop", MESSAGES: "stop_sequences", COMPLETIONS: "stop"}


def ask(server, path, **fields):
    status, _, body = server.request("POST", path, {**BODIES[path], **fields})
    if status != 200:
        assert body["error"]["type"] == "invalid_request_error"
        assert body["error"]["message"]
    return status


@pytest.mark.parametrize("path", TOOLS)
def test_tools(scripted, path):
    tools = [TOOLS[path](i) for i in range(1025)]
    assert ask(scripted, path, tools=tools[:1024]) == 200
    assert ask(scripted, path, tools=tools) == 400


@pytest.mark.parametrize("path", STOPS)
def test_stop_strings(scripted, path):
    name = STOPS[path]
    assert ask(scripted, path, **{name: [f"stop{i}" for i in range(16)]}) == 200
    assert ask(scripted, path, **{name: [f"stop{i}" for i in range(17)]}) == 400
    assert ask(scripted, path, **{name: ["é" * 128]}) == 200
    assert ask(scripted, path, **{name: ["é" * 128 + "x"]}) == 400
    assert ask(scripted, path, **{name: [""]}) == 400


def test_n(scripted):
    assert ask(scripted, COMPLETIONS, n=8) == 200
    assert ask(scripted, COMPLETIONS, n=9) == 400
    assert ask(scripted, COMPLETIONS, n=0) == 400
    assert ask(scripted, CHAT, n=1) == 200
    assert ask(scripted, CHAT, n=2) == 400


@pytest.mark.parametrize("path,name", [(CHAT, "max_tokens"), (CHAT, "max_completion_tokens"), (RESPONSES, "max_output_tokens"), (COMPLETIONS, "max_tokens")])
def test_max_tokens(scripted, path, name):
    assert ask(scripted, path, **{name: 393216}) == 200
    for bad in (393217, -1, 1.5, "8", 2**64):
        assert ask(scripted, path, **{name: bad}) == 400
    if path != COMPLETIONS:
        assert ask(scripted, path, **{name: 0}) == 400


def test_max_tokens_of_messages(scripted):
    for good in (1, 393216, 393217, 10**12):  # larger ones are cut down
        assert ask(scripted, MESSAGES, max_tokens=good) == 200
    for bad in (0, -1, "8"):
        assert ask(scripted, MESSAGES, max_tokens=bad) == 400


def test_beta_completions(scripted):
    body = BODIES[COMPLETIONS]
    assert scripted.request("POST", "/beta/completions", {**body, "max_tokens": 4096})[0] == 200
    assert scripted.request("POST", "/beta/completions", {**body, "max_tokens": 4097})[0] == 400


def test_other_ranges(scripted):
    for path in (CHAT, RESPONSES, MESSAGES, COMPLETIONS):
        assert ask(scripted, path, cache_salt="x" * 128) == 200
        assert ask(scripted, path, cache_salt="x" * 129) == 400
        assert ask(scripted, path, priority=2) == 200
        assert ask(scripted, path, priority=3) == 400
        assert ask(scripted, path, cache_mode="sometimes") == 400
    assert ask(scripted, CHAT, logprobs=True, top_logprobs=20) == 200
    assert ask(scripted, CHAT, logprobs=True, top_logprobs=21) == 400
    assert ask(scripted, COMPLETIONS, logprobs=20) == 200
    assert ask(scripted, COMPLETIONS, logprobs=21) == 400


def test_prompts_of_completions(scripted):
    assert ask(scripted, COMPLETIONS, prompt=["Hi"] * 64) == 200
    assert ask(scripted, COMPLETIONS, prompt=["Hi"] * 100000) == 400
    assert ask(scripted, COMPLETIONS, prompt=[]) == 400
