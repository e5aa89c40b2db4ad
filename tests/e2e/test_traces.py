# SPDX-License-Identifier: Apache-2.0
"""Traces: what a collector gets, who is sampled, and that a collector that is gone disturbs nobody."""

import http.server
import json
import re
import subprocess
import threading

import pytest
from conftest import PROGRAM, TIMEOUT_S, run_program
from test_auth import BODIES
from test_http import wait_until

CHAT = "/v1/chat/completions"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector:
    """Takes OTLP/HTTP JSON; `spans` are all spans, `fail` makes it refuse."""

    def __init__(self):
        self.spans, self.bodies, self.fail = [], [], False
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/json")
                owner.bodies.append(body)
                for resource in json.loads(body)["resourceSpans"]:
                    names = {one["key"]: one["value"]["stringValue"] for one in resource["resource"]["attributes"]}
                    assert names["service.name"] == "deepinfer" and names["service.version"]
                    for scope in resource["scopeSpans"]:
                        owner.spans += scope["spans"]
                self.send_response(500 if owner.fail else 200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, trace):
        return {span["name"]: span for span in self.spans if span["traceId"] == trace}


@pytest.fixture
def collector():
    one = Collector()
    yield one
    one.server.shutdown()
    one.server.server_close()


def attributes(span):
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


def parent(trace, is_sampled):
    return {"traceparent": f"00-{trace}-{PARENT}-{int(is_sampled):02}"}


def test_spans(collector, tmp_path):
    access = tmp_path / "access.log"
    unsampled, wrong = "1" * 32, "2" * 32
    with run_program("--otlp-endpoint", collector.url, "--access-log", access) as server:
        for path in (CHAT, "/v1/messages", "/v1/responses", "/v1/completions"):
            collector.spans.clear()
            status, headers, _ = server.request("POST", path, BODIES[path], parent(TRACE, True))
            assert status == 200
            wait_until(lambda: len(collector.of(TRACE)) == 5)
            spans = collector.of(TRACE)
            assert set(spans) == {"http", "tokenize", "queue", "prefill", "decode"}
            http = spans["http"]
            assert (http["parentSpanId"], http["kind"]) == (PARENT, 2)
            assert headers["traceresponse"] == f"00-{TRACE}-{http['spanId']}-01"
            assert all(span["parentSpanId"] == http["spanId"] for name, span in spans.items() if name != "http")
            assert len({span["spanId"] for span in spans.values()}) == 5
            # One after the other, inside the request.
            times = [(int(spans[name]["startTimeUnixNano"]), int(spans[name]["endTimeUnixNano"])) for name in ("tokenize", "queue", "prefill", "decode")]
            assert all(begin <= end for begin, end in times)
            assert all(a[1] == b[0] for a, b in zip(times, times[1:]))
            assert int(http["startTimeUnixNano"]) <= times[0][0] and times[-1][1] == int(http["endTimeUnixNano"])
            assert [event["name"] for event in spans["decode"]["events"]] == ["first_token"]
            shown = attributes(http)
            assert shown["request.id"] == headers["x-request-id"] and shown["http.response.status_code"] == "200"
            assert int(shown["tokens.prompt"]) > 0 and int(shown["tokens.output"]) > 0
        # The caller's flag decides, but errors are always sent.
        assert server.request("POST", CHAT, BODIES[CHAT], parent(unsampled, False))[0] == 200
        assert server.request("POST", CHAT, "{", parent(wrong, False))[0] == 400
        wait_until(lambda: collector.of(wrong))
        assert set(collector.of(wrong)) == {"http", "tokenize"}
        assert attributes(collector.of(wrong)["http"])["error.type"] == "invalid_request_error"
        # A malformed header is no parent.
        headers = server.request("POST", CHAT, "{", {"traceparent": "00-" + "0" * 32 + f"-{PARENT}-01"})[1]
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", headers["traceresponse"]) and "0" * 32 not in headers["traceresponse"]
    assert not collector.of(unsampled)  # the program has ended: nothing is on its way
    traces = [json.loads(line).get("trace_id") for line in access.read_text().splitlines()]
    assert traces[:6] == [TRACE] * 4 + [unsampled, wrong]


def test_requests_that_end_early(collector):
    """A request that waits, and one that is taken off the device."""
    with run_program("--otlp-endpoint", collector.url, "--max-num-seqs", 1) as server:
        with server.connect() as sock:
            body = json.dumps({**BODIES["/v1/completions"], "max_tokens": 12000, "ignore_eos": True, "stream": True}).encode()
            sock.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n"
                         f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
        wait_until(lambda: collector.of(TRACE))
        assert attributes(collector.of(TRACE)["http"])["finish.reason"] == "client_disconnected"


def test_collector_that_is_gone(collector):
    collector.fail = True
    with run_program("--otlp-endpoint", collector.url) as server:
        for _ in range(3):
            assert server.request("POST", CHAT, BODIES[CHAT], parent(TRACE, True))[0] == 200
        wait_until(lambda: "the collector answered 500" in "".join(server.log))
    with run_program("--otlp-endpoint", "http://127.0.0.1:1") as server:
        assert server.request("POST", CHAT, BODIES[CHAT], parent(TRACE, True))[0] == 200
        wait_until(lambda: "traces of 1 requests are lost" in "".join(server.log))


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector", "http://", "http://a:b"])
def test_wrong_endpoints(url):
    result = subprocess.run([PROGRAM, "serve", "--check-config", "--otlp-endpoint", url], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 2 and "--otlp-endpoint" in result.stderr
