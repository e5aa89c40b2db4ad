# SPDX-License-Identifier: Apache-2.0
"""API keys: who gets which status and body, on every API; rights, rotation, rates and budgets."""

import hashlib
import json
import secrets
import string

import pytest
from conftest import run_program, run_scripted

MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES = {
    "/v1/chat/completions": {"model": "deepseek-flash", "messages": MESSAGES, "thinking": {"type": "disabled"}},
    "/v1/responses": {"model": "deepseek-flash", "input": "Hi", "reasoning": {"effort": "none"}},
    "/v1/messages": {"model": "deepseek-flash", "max_tokens": 8, "messages": MESSAGES, "thinking": {"type": "disabled"}},
    "/v1/messages/count_tokens": {"model": "deepseek-flash", "messages": MESSAGES},
    "/v1/completions": {"model": "deepseek-flash", "prompt": "Hi"},
    "/tokenize": {"text": "Hi"},
    "/v1/models": None,
}
GENERATES = list(BODIES)[:3] + ["/v1/completions"]
CHAT = "/v1/chat/completions"


def make_key(**fields):
    key = "di-" + "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(43))
    salt = secrets.token_bytes(16)
    record = {"id": key[3:11], "salt": salt.hex(), "sha256": hashlib.sha256(salt + key.encode()).hexdigest(), "organisation": "acme", **fields}
    return key, record


class Keys:
    """A scripted server with a key file that the test rewrites."""

    def __init__(self, server, file):
        self.server, self.file = server, file

    def write(self, *records):
        self.file.write_text(json.dumps({"keys": list(records)}))
        assert self.server.command("keys") == "ok\n"

    def ask(self, key, path=CHAT, **fields):
        body = BODIES[path] if BODIES[path] is None else {**BODIES[path], **fields}
        return self.server.request("GET" if body is None else "POST", path, body, {"Authorization": f"Bearer {key}"} if key else {})


@pytest.fixture
def keys(tmp_path):
    file = tmp_path / "keys.json"
    file.write_text('{"keys": []}')
    with run_scripted("--keys", file) as server:
        yield Keys(server, file)


def error_body(path, headers, kind, message):
    body = {"error": {"message": message, "type": kind, "param": None, "code": kind}}
    if path.startswith("/v1/messages"):
        return {"type": "error", **body, "request_id": headers["x-request-id"]}
    return body


@pytest.mark.parametrize("path", BODIES)
def test_matrix(keys, path):
    good, record = make_key()
    expired, expired_record = make_key(expires_at=1)
    no_right, no_right_record = make_key(scopes=["kv:admin", "ops:admin"])
    unknown, _ = make_key()
    keys.write(record, expired_record, no_right_record)
    for key in (good,):
        assert keys.ask(key, path)[0] == 200
    invalid = "the API key is not valid"
    missing = 'no API key was sent; use the header "Authorization: Bearer KEY"'
    for key, message in ((None, missing), (unknown, invalid), (good[:-1], invalid), (good + "x", invalid), (expired, invalid)):
        status, headers, body = keys.ask(key, path)
        assert (status, headers["www-authenticate"], headers["content-type"]) == (401, "Bearer", "application/json")
        assert body == error_body(path, headers, "authentication_error", message)
    status, headers, body = keys.ask(no_right, path)
    assert status == 403
    assert body == error_body(path, headers, "permission_error", 'the API key lacks the scope "inference"')


def test_headers(keys):
    good, record = make_key()
    bad, _ = make_key()
    keys.write(record)

    def status(**headers):
        return keys.server.request("GET", "/v1/models", None, {name.replace("_", "-"): value for name, value in headers.items()})[0]

    assert status(x_api_key=good) == 200
    assert status(authorization=f"bearer  {good}") == 200
    # Authorization wins.
    assert status(authorization=f"Bearer {good}", x_api_key=bad) == 200
    assert status(authorization=f"Bearer {bad}", x_api_key=good) == 401
    for value in (good, f"Basic {good}", "Bearer", "Bearer ", f"Token {good}"):
        assert status(authorization=value) == 401
    for path in ("/healthz", "/readyz", "/metrics", "/version", "/openapi.json", "/"):
        assert keys.server.request("GET", path)[0] == 200


@pytest.mark.parametrize("path", GENERATES)
def test_models(keys, path):
    key, record = make_key(models=["DeepSeek-V4.1-Flash"])
    keys.write(record)
    assert keys.ask(key, path, model="DeepSeek-V4.1-Flash")[0] == 200
    status, headers, body = keys.ask(key, path)
    assert status == 403
    assert body == error_body(path, headers, "permission_error", "the API key may not use the model deepseek-flash")


def test_rotation(keys):
    old, old_record = make_key()
    new, new_record = make_key()
    keys.write(old_record)
    assert [keys.ask(key)[0] for key in (old, new)] == [200, 401]
    keys.write(old_record, new_record)  # both are valid while clients change over
    assert [keys.ask(key)[0] for key in (old, new)] == [200, 200]
    keys.write({**old_record, "expires_at": 1}, new_record)
    assert [keys.ask(key)[0] for key in (old, new)] == [401, 200]
    keys.write(new_record)
    assert [keys.ask(key)[0] for key in (old, new)] == [401, 200]


@pytest.mark.parametrize("path", [path for path in BODIES if BODIES[path]])
def test_requests_per_minute(keys, path):
    key, record = make_key(requests_per_minute=2)
    other, other_record = make_key()
    keys.write(record, other_record)
    assert [keys.ask(key, path)[0] for _ in range(2)] == [200, 200]
    status, headers, body = keys.ask(key, path)
    wait = int(headers["retry-after"])
    assert status == 429 and 1 <= wait <= 30
    assert body == error_body(path, headers, "rate_limit_error", f"the API key may send 2 requests per minute; try again in {wait} s")
    assert keys.ask(other, path)[0] == 200
    keys.write({**record, "requests_per_minute": 0}, other_record)  # the file counts at once
    assert keys.ask(key, path)[0] == 200


@pytest.mark.parametrize("path", GENERATES)
def test_tokens_per_minute(keys, path):
    key, record = make_key(tokens_per_minute=1)
    keys.write(record)
    assert keys.ask(key, path)[0] == 200
    status, headers, body = keys.ask(key, path)
    wait = int(headers["retry-after"])
    assert status == 429 and wait >= 60
    assert body == error_body(path, headers, "rate_limit_error", f"the API key may use 1 tokens per minute; try again in {wait} s")
    assert keys.ask(key, "/tokenize")[0] == 200


@pytest.mark.parametrize("path", GENERATES)
def test_budget(keys, path):
    key, record = make_key(budget_tokens=5)
    keys.write(record)
    assert keys.ask(key, path)[0] == 200
    status, headers, body = keys.ask(key, path)
    assert (status, "retry-after" in headers) == (402, False)
    assert body == error_body(path, headers, "insufficient_quota", "the API key has used up its budget of 5 tokens")
    assert keys.ask(key, "/v1/models")[0] == 200
    keys.write({**record, "budget_tokens": 100000})
    assert keys.ask(key, path)[0] == 200


def test_rejects_are_counted(keys):
    key, record = make_key(budget_tokens=1)
    keys.write(record)
    keys.ask(key)
    keys.ask(key)
    text = keys.server.request("GET", "/metrics")[2]
    assert 'deepinfer_router_rejects_total{reason="budget"} 1' in text
    assert 'deepinfer_router_rejects_total{reason="queue"} 0' in text


@pytest.mark.parametrize("fields", [{"requests_per_minute": "2"}, {"budget_tokens": -1}, {"tokens_per_minute": 1.5}, {"expires_at": None},
                                    {"rate": 5}, {"scopes": ["all"]}, {"domain": 1}, {"models": "x"}])
def test_wrong_records_change_nothing(keys, fields):
    key, record = make_key()
    keys.write(record)
    keys.write({**record, **fields})  # a limit that is spelled wrongly is an error, not "no limit"
    assert keys.ask(key)[0] == 200


def test_budget_and_domains_of_the_program(tmp_path):
    """With the engine: real token counts, budgets that survive a restart, prefixes shared by domain."""
    file, usage = tmp_path / "keys.json", tmp_path / "usage.log"
    poor, poor_record = make_key(budget_tokens=100)
    one, one_record = make_key(organisation="one", domain="shared")
    two, two_record = make_key(organisation="two", domain="shared")
    file.write_text(json.dumps({"keys": [poor_record, one_record, two_record]}))
    long = {**BODIES[CHAT], "messages": [{"role": "user", "content": "What is the capital of France? " * 60}], "max_tokens": 1}

    def ask(server, key):
        return server.request("POST", CHAT, long, {"x-api-key": key})

    for statuses in ([200, 402], [402]):
        with run_program("--api-key-file", file, "--usage-log", usage) as server:
            assert [ask(server, poor)[0] for _ in statuses] == statuses
            if statuses[0] == 200:
                assert ask(server, one)[2]["usage"]["prompt_cache_hit_tokens"] == 0
                assert ask(server, two)[2]["usage"]["prompt_cache_hit_tokens"] > 0
