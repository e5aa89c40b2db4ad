# SPDX-License-Identifier: Apache-2.0
"""Text of prompts, answers and tool arguments appears in no log, metric, trace or file that the server writes."""

import json
import os

from conftest import run_program, sse_events
from test_http import post
from test_traces import PARENT, TRACE, collector  # noqa: F401 (a fixture)


class Canaries:
    """Each place of a request gets a word of its own."""

    def __init__(self):
        self.words = []

    def __call__(self):
        self.words.append(f"qzxcanary{len(self.words):03d}vjk")
        return self.words[-1]


def requests(word):
    """(path, body) for every API, with a word in every field that takes text."""
    schema = lambda: {"type": "object", "description": word(), "properties": {word(): {"type": "string", "description": word()}}}  # noqa: E731
    yield "/v1/chat/completions", {
        "model": "deepseek-flash", "max_tokens": 4, "thinking": {"type": "disabled"}, "stop": [word()], "cache_salt": word(), "user": word(),
        "metadata": {word(): word()}, "tools": [{"type": "function", "function": {"name": word(), "description": word(), "parameters": schema()}}],
        "messages": [{"role": "system", "content": word()}, {"role": "user", "content": word(), "name": word()},
                     {"role": "assistant", "content": word(), "reasoning_content": word(),
                      "tool_calls": [{"id": "c1", "type": "function", "function": {"name": word(), "arguments": json.dumps({word(): word()})}}]},
                     {"role": "tool", "tool_call_id": "c1", "content": word()}]}
    yield "/v1/responses", {
        "model": "deepseek-flash", "max_output_tokens": 4, "reasoning": {"effort": "none"}, "instructions": word(), "user": word(),
        "tools": [{"type": "function", "name": word(), "description": word(), "parameters": schema()}],
        "input": [{"role": "user", "content": [{"type": "input_text", "text": word()}]},
                  {"type": "function_call", "call_id": "c1", "name": word(), "arguments": json.dumps({word(): word()})},
                  {"type": "function_call_output", "call_id": "c1", "output": word()}]}
    messages = {
        "model": "deepseek-flash", "thinking": {"type": "disabled"}, "system": [{"type": "text", "text": word()}],
        "tools": [{"name": word(), "description": word(), "input_schema": schema()}],
        "messages": [{"role": "user", "content": word()}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": word(), "input": {word(): word()}}]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": word()}]}]}
    yield "/v1/messages", {**messages, "max_tokens": 4, "stop_sequences": [word()], "metadata": {"user_id": word()}}
    yield "/v1/messages/count_tokens", messages
    yield "/v1/completions", {"model": "deepseek-flash", "max_tokens": 4, "prompt": [word(), word()], "stop": word(), "echo": True}
    yield "/tokenize", {"text": word()}


def broken(word):
    """Requests that are refused: an error may not quote them in a log."""
    yield "/v1/chat/completions", {"model": word(), "messages": [{"role": "user", "content": word()}]}
    yield "/v1/chat/completions", {"model": "deepseek-flash", "messages": [{"role": word(), "content": word()}]}
    yield "/v1/chat/completions", {"model": "deepseek-flash", "messages": [{"role": "user", "content": {word(): word()}}]}
    yield "/v1/messages", {"model": "deepseek-flash", "messages": [{"role": "user", "content": [{"type": word(), "text": word()}]}]}
    yield "/v1/responses", {"model": "deepseek-flash", "input": [{"role": word(), "content": word()}]}
    yield "/v1/completions", {"model": "deepseek-flash", "prompt": {word(): word()}}
    yield "/v1/completions", {"model": "deepseek-flash", "prompt": word(), "cache_mode": word()}
    yield "/" + word(), {"text": word()}
    yield "/v1/models/" + word() + "?" + word(), {}


def test_no_text_leaves(collector, tmp_path):  # noqa: F811
    word = Canaries()
    files = {name: tmp_path / f"{name}.log" for name in ("access", "usage", "audit")}
    parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    answers = []
    arguments = [part for name, path in files.items() for part in (f"--{name}-log", path)]
    with run_program("--otlp-endpoint", collector.url, "--log-level", "trace", "--logging-interval-step", 1, *arguments) as server:
        for path, body in requests(word):
            assert server.request("POST", path, body, parent)[0] == 200, path
            if "tokens" not in path and path != "/tokenize":
                status, _, text = server.request("POST", path, {**body, "stream": True}, parent)
                assert status == 200
                answers += [data for _, data in sse_events(text)]
        for path, body in broken(word):
            assert server.request("POST", path, body, parent)[0] in (400, 404, 405), path
        # Cut off in the middle, and no JSON at all.
        with server.connect() as sock:
            sock.sendall(post(json.dumps({"model": "deepseek-flash", "prompt": word(), "max_tokens": 9000, "ignore_eos": True, "stream": True}).encode(),
                              path="/v1/completions"))
            sock.recv(100)
        assert server.request("POST", "/v1/chat/completions", '{"' + word(), parent)[0] == 400
        server.raw(f"GET /{word()} {word()}\r\n{word()}: x\r\n\r\n".encode())
        assert server.request("GET", "/healthz", headers={"x-request-id": word() + "/!", "user-agent": word(), "cookie": word(), "authorization": word()})[0] == 200
        metrics = server.request("GET", "/metrics")[2]
        environment = os.listdir(tmp_path)
    assert set(environment) == {"access.log", "usage.log", "audit.log"}
    places = {name: path.read_text() for name, path in files.items()}
    places.update(stderr="".join(server.log), metrics=metrics, traces=b"".join(collector.bodies).decode())
    assert len(word.words) > 60 and len(places["access"].splitlines()) >= 20 and len(collector.spans) >= 20
    for name, text in places.items():
        assert "qzxcanary" not in text, (name, [line for line in text.splitlines() if "qzxcanary" in line][:3])
