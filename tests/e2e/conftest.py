# SPDX-License-Identifier: Apache-2.0
"""Servers for the tests: the program with the demo model, and the scripted server, both on a free port of the loopback address."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("DEEPINFER_BUILD_DIR", ROOT / "build"))
PROGRAM = BUILD / "deepinfer"
SCRIPTED = BUILD / "tests" / "e2e" / "scripted_server"
TIMEOUT_S = 120


class Server:
    """A running server; `port` is its public one."""

    def __init__(self, process, port):
        self.process, self.port = process, port
        self.url = f"http://127.0.0.1:{port}"

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)

    def raw(self, data, shut=False):
        """Sends bytes, returns everything until the server closes."""
        with self.connect() as sock:
            sock.sendall(data)
            if shut:
                sock.shutdown(socket.SHUT_WR)
            return read_all(sock)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body as JSON or text) of one request on a connection of its own."""
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
        if body is not None:
            lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        return parse_response(self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")))

    def metric(self, name):
        """Sum over the label sets."""
        text = self.request("GET", "/metrics")[2]
        values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, values))


class ScriptedServer(Server):
    """The server without a model (scripted_server.cc)."""

    def command(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def play(self, name, chunks, finish="stop", **usage):
        """Requests with the id `name` are answered with these chunks: strings, bytes, or as in the golden cases."""
        def chunk(piece):
            return {"text": piece} if isinstance(piece, str) else {"hex": piece.hex()} if isinstance(piece, bytes) else piece

        script = {"id": name, "chunks": [chunk(piece) for piece in chunks], "finish": finish, "prompt_usage": usage or None}
        assert self.command(json.dumps(script)) == "ok\n"

    def last_request(self):
        """prompt, max_tokens and grammar of the last request, as the engine would have got them."""
        return json.loads(self.command("request"))


def wait_until(condition):
    """For what has no event of its own to wait for, such as a counter of the server."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def read_all(sock):
    data = b""
    while piece := sock.recv(1 << 16):
        data += piece
    return data


def unchunk(data):
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        if count == 0:
            return body
        body, data = body + data[:count], data[count + 2 :]
    raise AssertionError("the last chunk is missing")


def parse_response(data):
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        body = unchunk(body)
    text = body.decode()
    with contextlib.suppress(ValueError):
        return int(lines[0].split()[1]), headers, json.loads(text)
    return int(lines[0].split()[1]), headers, text


def sse_events(text):
    """[(event name or None, data)]; comments are skipped."""
    events = []
    for block in text.split("\n\n"):
        name, data = None, None
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:] if line[6:] == "[DONE]" else json.loads(line[6:])
        if data is not None:
            events.append((name, data))
    return events


@contextlib.contextmanager
def run_program(*arguments, model="demo", drafts=False):
    """`deepinfer serve`; its log lines collect in server.log. Without drafts it starts in a moment: nothing has to be measured."""
    arguments = (*arguments, *(() if drafts else ("--num-drafts", "0")))
    process = subprocess.Popen(
        [PROGRAM, "serve", "--model", model, "--port", "0", *([] if "--admin-port" in arguments else ["--admin-port", "0"]), *map(str, arguments)],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    log = []
    port = None
    for line in process.stderr:
        log.append(line)
        if match := re.search(r"listening on https?://\S+:(\d+)", line):
            port = int(match[1])
            break
    if port is None:
        process.wait()
        raise RuntimeError("".join(log))
    reader = threading.Thread(target=lambda: log.extend(process.stderr), daemon=True)
    reader.start()
    server = Server(process, port)
    server.log = log
    try:
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        server.exit_code = process.wait(TIMEOUT_S)
        reader.join(TIMEOUT_S)
    assert server.exit_code == 0, "".join(log)


@contextlib.contextmanager
def run_scripted(*arguments):
    process = subprocess.Popen([SCRIPTED, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    server = ScriptedServer(process, int(process.stdout.readline()))
    try:
        yield server
    finally:
        process.stdin.close()
        code = process.wait(TIMEOUT_S)
    assert code == 0


@pytest.fixture(scope="session")
def demo():
    with run_program(drafts=True) as server:
        yield server


@pytest.fixture(scope="session")
def scripted():
    with run_scripted("--origin", "https://app.example") as server:
        yield server


@pytest.fixture(scope="session")
def structured(demo):
    """For tests that need structured outputs: a build without the grammar library has none."""
    body = {"model": "deepseek-flash", "messages": [{"role": "user", "content": "Say it in json"}], "max_tokens": 1,
            "thinking": {"type": "disabled"}, "response_format": {"type": "json_object"}}
    status, _, answer = demo.request("POST", "/v1/chat/completions", body)
    if status == 400 and "not in this build" in answer["error"]["message"]:
        pytest.skip("built without structured outputs")
