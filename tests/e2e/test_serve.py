# SPDX-License-Identifier: Apache-2.0
"""`deepinfer serve` itself: settings, keys and tenants, leaving clients, shutting down."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess

import pytest
from conftest import PROGRAM, TIMEOUT_S, Server, parse_response, read_all, run_program, sse_events, wait_until
from test_http import PATH, post

CHAT = {"model": "deepseek-flash", "messages": [{"role": "user", "content": "What is the capital of France?"}], "thinking": {"type": "disabled"}, "temperature": 0}
LONG = {**CHAT, "messages": [{"role": "user", "content": "What is the capital of France? " * 60}], "max_tokens": 1}
# Runs until it is cancelled.
ENDLESS = {"model": "deepseek-flash", "prompt": "Once upon a time", "max_tokens": 12000, "ignore_eos": True, "temperature": 1}


def serve(*arguments):
    return subprocess.run([PROGRAM, "serve", *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S)


def make_key(organisation):
    out = serve("--new-api-key", organisation).stdout
    return re.search(r"key:\s+(\S+)", out)[1], json.loads(re.search(r"record: (.*)", out)[1])


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def gauges(server):
    """What running requests hold; cached blocks count as free."""
    return [server.metric(name) for name in ("deepinfer_requests_running", "deepinfer_requests_waiting", "deepinfer_kv_blocks_used")]


def test_check_config():
    result = serve("--check-config", "--api-key", "a-secret-key", "--port", 1234)
    assert result.returncode == 0
    shown = json.loads(result.stdout)
    assert (shown["port"], shown["api_key"]) == ("1234", "(set)")
    assert serve("--check-config", "--port", 70000).returncode == 2
    assert serve("--check-config", "--tls-cert", "x.pem").returncode == 2


def test_port_in_use(demo):
    result = serve("--port", demo.port, "--admin-port", 0)
    assert result.returncode == 1
    assert f"port {demo.port} of 127.0.0.1 is in use" in result.stderr


def test_key_file(tmp_path):
    (acme, acme_record), (other, other_record) = make_key("acme"), make_key("other")
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [acme_record]}))
    assert acme not in file.read_text()
    with run_program("--api-key-file", file) as server:
        for headers in ({}, bearer(other), bearer(acme[:-1] + ("y" if acme[-1] == "x" else "x")), {"Authorization": acme}, {**bearer("bad"), "x-api-key": acme}):
            status, response, body = server.request("POST", PATH, CHAT, headers)
            assert (status, body["error"]["type"], response["www-authenticate"]) == (401, "authentication_error", "Bearer")
        for headers in (bearer(acme), {"x-api-key": acme}):
            assert server.request("POST", PATH, CHAT, headers)[0] == 200
        assert server.request("GET", "/healthz")[0] == 200

        # A damaged file changes nothing, a good one counts within a moment.
        file.write_text("{")
        os.kill(server.process.pid, signal.SIGHUP)
        wait_until(lambda: "stay as they were" in "".join(server.log))
        assert server.request("POST", PATH, CHAT, bearer(acme))[0] == 200
        file.write_text(json.dumps({"keys": [acme_record, other_record]}))
        os.kill(server.process.pid, signal.SIGHUP)
        wait_until(lambda: server.request("POST", PATH, CHAT, bearer(other))[0] == 200)

        # Prefixes are shared within an organisation only.
        def cached(key, **fields):
            return server.request("POST", PATH, {**LONG, **fields}, bearer(key))[2]["usage"]["prompt_cache_hit_tokens"]

        def computed(key, **fields):
            """Prompt tokens that the model had to compute, by the server's own count: what the time to the first token is made of."""
            def misses():
                return float(re.search(r'^deepinfer_prompt_tokens_total{kind="miss"} (\S+)$', server.request("GET", "/metrics")[2], re.MULTILINE)[1])

            before, hit = misses(), cached(key, **fields)
            wait_until(lambda: misses() > before)
            return hit, misses() - before

        hit, whole = computed(acme)
        assert hit == 0
        hit, rest = computed(acme)
        assert (hit > 0, hit + rest) == (True, whole)
        assert computed(other) == (0, whole)
        assert computed(other) == (hit, rest)
        assert computed(acme, cache_salt="mine") == (0, whole)

        file.write_text(json.dumps({"keys": [acme_record, {**other_record, "models": ["DeepSeek-V4.1-Flash"]}]}))
        os.kill(server.process.pid, signal.SIGHUP)
        wait_until(lambda: server.request("POST", PATH, CHAT, bearer(other))[0] == 403)
        assert server.request("POST", PATH, {**CHAT, "model": "DeepSeek-V4.1-Flash"}, bearer(other))[0] == 200

        file.write_text(json.dumps({"keys": [{**acme_record, "expires_at": 1}, {**other_record, "scopes": ["kv:admin"]}]}))
        os.kill(server.process.pid, signal.SIGHUP)
        wait_until(lambda: server.request("POST", PATH, CHAT, bearer(acme))[0] == 401)
        status, _, body = server.request("POST", PATH, CHAT, bearer(other))
        assert (status, body["error"]["type"]) == (403, "permission_error")


def test_streams_per_key():
    with run_program("--api-key", "a-secret-key", "--max-streams-per-key", 1) as server:
        with server.connect() as sock:
            sock.sendall(post({**ENDLESS, "stream": True}, "x-api-key: a-secret-key\r\n", "/v1/completions"))
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
            status, headers, body = server.request("POST", PATH, CHAT, bearer("a-secret-key"))
            assert (status, body["error"]["type"]) == (429, "rate_limit_error")
            assert int(headers["retry-after"]) >= 1
        wait_until(lambda: server.request("POST", PATH, CHAT, bearer("a-secret-key"))[0] == 200)


def test_full_queue():
    with run_program("--max-queued-requests", 1) as server, server.connect() as sock:
        sock.sendall(post({**ENDLESS, "stream": True}, "", "/v1/completions"))
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        status, headers, body = server.request("POST", PATH, CHAT)
        assert (status, body["error"]["type"]) == (429, "rate_limit_error")
        assert int(headers["retry-after"]) >= 1


def test_tls(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def make():
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "1",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)

    def ask(server, body, version=None):
        context = ssl.create_default_context(cafile=cert)
        if version:
            context.maximum_version = version
        with context.wrap_socket(server.connect(), server_hostname="localhost") as sock:
            sock.sendall(post(body, "Connection: close\r\n", host="localhost"))
            return parse_response(read_all(sock)), sock.getpeercert()["serialNumber"]

    make()
    with run_program("--tls-cert", cert, "--tls-key", key) as server:
        (status, _, body), serial = ask(server, CHAT)
        assert (status, body["choices"][0]["message"]["content"]) == (200, "The capital of France is Paris.")
        assert sse_events(ask(server, {**CHAT, "stream": True})[0][2])[-1] == (None, "[DONE]")
        with pytest.raises((ssl.SSLError, OSError)):
            ask(server, CHAT, ssl.TLSVersion.TLSv1_1)
        make()
        os.kill(server.process.pid, signal.SIGHUP)

        def has_new():
            try:
                return ask(server, CHAT)[1] != serial
            except ssl.SSLError:  # still the old certificate
                return False

        wait_until(has_new)


def start_slow(*arguments, max_tokens=300):
    """A program with one long request."""
    process = subprocess.Popen([PROGRAM, "serve", "--port", "0", "--admin-port", "0", "--num-drafts", "0", *map(str, arguments)], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if match := re.search(r"listening on \S+:(\d+)", line):
            break
    server = Server(process, int(match[1]))
    sock = server.connect()
    sock.sendall(post({**ENDLESS, "stream": True, "max_tokens": max_tokens}, "", "/v1/completions"))
    assert sock.recv(100).startswith(b"HTTP/1.1 200")
    return server, sock


def test_drain():
    server, sock = start_slow()
    server.process.send_signal(signal.SIGTERM)
    assert b"data: [DONE]" in read_all(sock)
    assert server.process.wait(TIMEOUT_S) == 0


def test_drain_ends_at_the_deadline():
    server, sock = start_slow("--drain-seconds", 0, max_tokens=12000)
    server.process.send_signal(signal.SIGTERM)
    assert b'"type":"overloaded_error"' in read_all(sock)
    assert server.process.wait(TIMEOUT_S) == 0


def test_interrupt():
    server, sock = start_slow("--drain-seconds", 100)
    sock.close()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(TIMEOUT_S) == 130


def test_prompts_stay_out_of_logs(tmp_path):
    access, usage = tmp_path / "access.log", tmp_path / "usage.log"
    canary = "xyzzycanary"
    with run_program("--access-log", access, "--usage-log", usage, "--log-level", "debug") as server:
        for stream in (True, False):
            server.request("POST", PATH, {**CHAT, "messages": [{"role": "user", "content": canary}], "stream": stream, "max_tokens": 4})
        server.request("POST", PATH, {**CHAT, "messages": [{"role": canary, "content": canary}]})
        server.request("POST", "/" + canary, {})
        metrics = server.request("GET", "/metrics")[2]
    for text in (access.read_text(), usage.read_text(), "".join(server.log), metrics):
        assert canary not in text
    lines = [json.loads(line) for line in access.read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 200, 400, 404, 200]
    record = json.loads(usage.read_text().splitlines()[0])
    assert set(record) == {"id", "key_id", "model", "hit", "miss", "out", "images", "class", "t0", "ttft", "t_end", "status"}
    assert record["out"] == 4


def test_metrics(demo):
    demo.request("POST", PATH, CHAT)
    demo.request("POST", PATH, "{")
    assert demo.metric("deepinfer_requests_total") >= 2
    assert demo.metric("deepinfer_errors_total") >= 1
    assert demo.metric("deepinfer_output_tokens_total") >= 8
    assert demo.request("GET", "/version")[2]["version"]


def test_admin_and_profile():
    with socket.socket() as probe, socket.socket() as second:
        probe.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        admin, profile = probe.getsockname()[1], second.getsockname()[1]
    with run_program("--admin-port", admin, "--profile-http-enable", "--profile-http-port-base", profile) as server:
        for_admin, for_profile = Server(server.process, admin), Server(server.process, profile)
        info = for_admin.request("GET", "/server_info")[2]
        assert info["options"]["admin_port"] == str(admin)
        assert for_admin.request("POST", "/admin/log-level", {"level": "warn"})[0] == 200
        assert for_admin.request("POST", "/admin/log-level", {"level": "loud"})[0] == 400
        assert for_admin.request("POST", "/admin/drain", {})[0] == 200
        assert server.request("GET", "/readyz")[0] == 503
        status, headers, body = server.request("POST", PATH, CHAT)
        assert (status, body["error"]["type"], "retry-after" in headers) == (503, "overloaded_error", True)
        assert for_admin.request("POST", "/admin/undrain", {})[0] == 200
        assert server.request("GET", "/readyz")[0] == 200
        assert server.request("GET", "/server_info")[0] == 404
        assert for_profile.request("GET", "/profile?num_steps=0")[0] == 400
        with server.connect() as sock:
            sock.sendall(post({**ENDLESS, "stream": True}, "", "/v1/completions"))
            sock.recv(100)
            status, _, body = for_profile.request("GET", "/profile?num_steps=2")
        assert (status, body["status"]) == (200, "ok")
        assert json.load(open(body["trace_file"]))
        os.unlink(body["trace_file"])


def refused(*arguments):
    done = subprocess.run([PROGRAM, "serve", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    return done.returncode, lines[0]


def test_mistakes_at_the_start(tmp_path):
    assert refused("--new-api-key", "") == (2, "error: --new-api-key needs the name of an organisation")
    code, line = refused("--tls-cert", tmp_path / "none.pem", "--tls-key", tmp_path / "none.key")
    assert code == 3 and "none.pem: No such file" in line
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = refused("--port", 0, "--admin-port", port)
        assert code == 1 and "--admin-port" in line
        code, line = refused("--port", port, "--admin-port", 0)
        assert code == 1 and "another --port" in line
