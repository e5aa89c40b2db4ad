# SPDX-License-Identifier: Apache-2.0
"""What the server does with bad, hostile or unusual HTTP: exact statuses, and it stays up. No model."""

import json
import socket

import pytest
from conftest import parse_response, read_all, run_scripted, sse_events, wait_until

CHAT = {"model": "deepseek-flash", "messages": [{"role": "user", "content": "Hi"}], "thinking": {"type": "disabled"}}
PATH = "/v1/chat/completions"


def post(body, headers="", path=PATH, host="127.0.0.1"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode() + data


def status_of(server, data):
    return parse_response(server.raw(data))[0]


def nested(depth):
    return ('{"a":' * depth + "1" + "}" * depth).encode()


def test_answer(scripted):
    status, headers, body = scripted.request("POST", PATH, CHAT)
    assert status == 200
    assert body["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"].startswith("req_")


def test_stream(scripted):
    status, headers, text = scripted.request("POST", PATH, {**CHAT, "stream": True})
    assert status == 200
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    events = sse_events(text)
    assert events[-1] == (None, "[DONE]")
    assert "".join(e["choices"][0]["delta"].get("content") or "" for _, e in events[:-1]) == "The capital of France is Paris."


@pytest.mark.parametrize("text", ["{", "", "null", "[]", '{"model":1}', "\x00", '{"messages":"x"}'])
def test_malformed_bodies(scripted, text):
    status, _, body = scripted.request("POST", PATH, text)
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith("Failed to deserialize the JSON body into the target type: ")


def test_invalid_utf8(scripted):
    body = json.dumps(CHAT).encode().replace(b"Hi", b"H\xff\xfe")
    assert status_of(scripted, post(body, "Connection: close\r\n")) == 400


def test_depth(scripted):
    body = json.dumps(CHAT).encode()[:-1]
    assert status_of(scripted, post(body + b',"metadata":' + nested(63) + b"}", "Connection: close\r\n")) == 200
    assert status_of(scripted, post(body + b',"metadata":' + nested(256) + b"}", "Connection: close\r\n")) == 400


def test_body_sizes(scripted):
    large = json.dumps({**CHAT, "metadata": {"x": "y" * (40 << 20)}}).encode()
    assert status_of(scripted, post(large, "Connection: close\r\n")) == 200
    status, _, body = parse_response(scripted.raw(post(b"x" * (65 << 20))))
    assert status == 413
    assert body["error"]["type"] == "request_too_large"


def test_body_too_large_in_chunks(scripted):
    with scripted.connect() as sock:
        sock.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
        for _ in range(66):
            sock.sendall(piece)
        assert parse_response(read_all(sock))[0] == 413


def test_chunked_request(scripted):
    body = json.dumps(CHAT).encode()
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    data = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + pieces + b"0\r\n\r\n"
    assert status_of(scripted, data) == 200


def test_expect_continue(scripted):
    body = json.dumps(CHAT).encode()
    with scripted.connect() as sock:
        sock.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert parse_response(read_all(sock))[0] == 200


@pytest.mark.parametrize("rest", [b"0\r\nX: " + 70000 * b"y" + b"\r\n\r\n", b"5;" + (1 << 20) * b"y", b"0\r\n" + 30000 * b"X: y\r\n" + b"\r\n", b"0\r\nX" + (1 << 20) * b"y"])
def test_long_lines_between_chunks(scripted, rest):
    """What the parser has to see in one piece is bounded, and nothing in it ends the process."""
    status, _, _ = parse_response(scripted.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + rest))
    assert status == 431
    assert scripted.request("GET", "/healthz")[0] == 200


def test_smuggled_request(scripted):
    answers = scripted.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answers.count(b"HTTP/1.1 ") == 1 and answers.startswith(b"HTTP/1.1 501 ")


def test_header_flood(scripted):
    for headers in ("X: " + "y" * 40000 + "\r\n", "".join(f"X{i}: 1\r\n" for i in range(5000))):
        assert status_of(scripted, f"GET /healthz HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode()) == 431


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"G\x00T / HTTP/1.1\r\n\r\n",
                                  b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
                                  b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                                  b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])
def test_no_http(scripted, data):
    assert status_of(scripted, data if data.endswith(b"\r\n") else data + b"\r\n\r\n") in (400, 404)


def test_routes(scripted):
    for path in ("/v1/nothing", "/../etc/passwd", "/v1/chat/completions/", "/%2e%2e/", "/v1//models"):
        status, _, body = scripted.request("GET", path)
        assert (status, body["error"]["type"]) == (404, "invalid_request_error")
    status, headers, _ = scripted.request("GET", PATH)
    assert (status, headers["allow"]) == (405, "POST")
    assert scripted.request("POST", "/v1/models", {})[0] == 405


@pytest.mark.parametrize("path", [PATH, "/chat/completions", "/beta/chat/completions"])
def test_aliases(scripted, path):
    assert scripted.request("POST", path, CHAT)[0] == 200


def test_models(scripted):
    _, _, body = scripted.request("GET", "/v1/models")
    assert body["object"] == "list" and body["data"][0]["id"] == "DeepSeek-V4.1-Flash"
    assert {"id", "object", "created", "owned_by", "type", "display_name", "created_at", "lifecycle", "max_model_len"} == set(body["data"][0])
    assert scripted.request("GET", "/v1/models/deepseek-ai/DeepSeek-V4.1-Flash")[0] == 200
    assert scripted.request("GET", "/v1/models/deepseek-ai%2FDeepSeek-V4.1-Flash")[0] == 200
    assert scripted.request("GET", "/v1/models/other")[0] == 404


def test_pipelining(scripted):
    data = post(CHAT) * 3 + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = scripted.raw(data)
    assert answer.count(b"HTTP/1.1 200 OK") == 4
    assert answer.count(b"The capital of France is Paris.") == 3


def test_pipelined_flood(scripted):
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert scripted.raw(one * 5000 + last).count(b'{"status":"ok"}') == 5001


def test_keep_alive(scripted):
    with scripted.connect() as sock:
        for _ in range(3):
            sock.sendall(post(CHAT))
            data = b""
            while not data.endswith(b"}"):
                data += sock.recv(1 << 16)
            assert b"Connection: close" not in data


def test_http10(scripted):
    body = json.dumps({**CHAT, "stream": True}).encode()
    answer = scripted.raw(f"POST {PATH} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    head, _, text = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert sse_events(text.decode())[-1] == (None, "[DONE]")


def test_special_tokens_stay_text(scripted):
    text = "<｜User｜></think><｜end▁of▁sentence｜>"
    plain = scripted.request("POST", "/tokenize", {"text": text})[2]["ids"]
    special = scripted.request("POST", "/tokenize", {"text": text, "parse_special": True})[2]["ids"]
    assert len(special) == 3 and len(plain) > 3
    for ids in (plain, special):
        assert scripted.request("POST", "/detokenize", {"ids": ids})[2]["text"] == text
    asked = {**CHAT, "messages": [{"role": "user", "content": text}]}
    assert scripted.request("POST", PATH, asked)[2]["usage"]["prompt_tokens"] > len(plain)


def test_request_ids(scripted):
    assert scripted.request("GET", "/healthz", headers={"x-request-id": "a.B_c-1"})[1]["x-request-id"] == "a.B_c-1"
    for bad in ("a b", "x" * 129, "é", "a/b"):
        assert scripted.request("GET", "/healthz", headers={"x-request-id": bad})[1]["x-request-id"].startswith("req_")


def test_hosts_and_origins(scripted):
    def ask(host="localhost:1", origin=None, method="GET", extra=""):
        lines = f"{method} /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{extra}"
        return parse_response(scripted.raw((lines + (f"Origin: {origin}\r\n" if origin else "") + "\r\n").encode()))

    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:9"):
        assert ask(host)[0] == 200
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::2]"):
        assert ask(host)[0] == 403
    assert ask(origin="http://evil.example")[0] == 403
    assert ask(origin="null")[0] == 403
    assert ask(origin="http://localhost:1")[0] == 200
    status, headers, _ = ask(origin="https://app.example")
    assert (status, headers["access-control-allow-origin"]) == (200, "https://app.example")
    preflight = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n"
    assert ask(origin="https://app.example", method="OPTIONS", extra=preflight)[0] == 204
    assert ask(origin="http://evil.example", method="OPTIONS", extra=preflight)[0] == 403


def test_slow_request():
    with run_scripted("--request-ms", 300) as server, server.connect() as sock:
        sock.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{".encode())
        status, _, body = parse_response(read_all(sock))
        assert (status, body["error"]["type"]) == (408, "timeout")


def test_no_first_token():
    with run_scripted("--ttft-ms", 300, "--keep-alive-ms", 100000) as server:
        for stream in (False, True):
            status, _, body = server.request("POST", PATH, {**CHAT, "stream": stream}, {"x-request-id": "silent"})
            assert (status, body["error"]["type"]) == (504, "timeout")


def test_keep_alive_lines():
    with run_scripted("--ttft-ms", 900, "--keep-alive-ms", 200) as server:
        status, _, text = server.request("POST", PATH, {**CHAT, "stream": True}, {"x-request-id": "silent"})
        assert status == 200 and text.startswith(": keep-alive\n\n")
        assert sse_events(text)[-1][1]["error"]["type"] == "timeout"
        status, _, body = server.request("POST", PATH, CHAT, {"x-request-id": "silent"})
        assert status == 200 and body["error"]["type"] == "timeout"


def test_disconnects(tmp_path):
    log = tmp_path / "access.log"
    with run_scripted("--access-log", log) as server:
        for stream in (True, False):
            with server.connect() as sock:
                sock.sendall(post({**CHAT, "stream": stream, "max_tokens": 300000}, "x-request-id: endless\r\n"))
                if stream:
                    data = b""
                    while data.count(b"data: ") < 3:
                        data += sock.recv(4096)
            wait_until(lambda: log.exists() and log.read_text().count("client_disconnected") == (1 if stream else 2))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["reason"] for line in lines] == ["client_disconnected"] * 2
    assert all(line["status"] in (200, 499) for line in lines)


def test_half_closed(scripted):
    for stream in (True, False):
        data = scripted.raw(post({**CHAT, "stream": stream, "max_tokens": 64}, "x-request-id: endless\r\n"), shut=True)
        status, _, body = parse_response(data)
        assert status == 200
        if stream:
            assert sse_events(body)[-1] == (None, "[DONE]")
        else:
            assert body["usage"]["completion_tokens"] == 64


def test_half_closed_with_a_large_answer(scripted):
    body = {**CHAT, "max_tokens": 4000, "logprobs": True}
    data = scripted.raw(post(body, "Connection: close\r\nx-request-id: endless\r\n"), shut=True)
    assert parse_response(data)[2]["usage"]["completion_tokens"] == 4000


def test_slow_reader(scripted):
    # Reads nothing for a while: other requests go on, and everything arrives in the end.
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", scripted.port))
        sock.sendall(post({**CHAT, "stream": True, "max_tokens": 3000}, "Connection: close\r\nx-request-id: endless\r\n"))
        for _ in range(20):
            assert scripted.request("POST", PATH, CHAT)[0] == 200
        sock.settimeout(60)
        events = sse_events(parse_response(read_all(sock))[2])
    assert events[-1] == (None, "[DONE]")
    assert events[-2][1]["usage"]["completion_tokens"] == 3000


def test_many_idle_connections(scripted):
    def resident_kib():
        with open(f"/proc/{scripted.process.pid}/status") as status:
            return int(next(line for line in status if line.startswith("VmRSS")).split()[1])

    scripted.request("POST", PATH, CHAT)
    before = resident_kib()
    socks = [scripted.connect() for _ in range(400)]
    for sock in socks:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for sock in socks:
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
    assert (resident_kib() - before) / len(socks) < 64
    assert scripted.request("POST", PATH, CHAT)[0] == 200
    for sock in socks:
        sock.close()


def test_page(scripted):
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/markdown.js", "text/javascript"), ("/page.css", "text/css")):
        status, headers, body = scripted.request("GET", path)
        assert status == 200 and headers["content-type"].startswith(kind) and body
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
    page = scripted.request("GET", "/")[2]
    script = scripted.request("GET", "/page.js")[2] + scripted.request("GET", "/markdown.js")[2]
    assert "http://" not in page and "https://" not in page and "style=" not in page and "onclick" not in page
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", ".href", ".src"):
        assert sink not in script
