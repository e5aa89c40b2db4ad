# SPDX-License-Identifier: Apache-2.0
"""Refusals and their exceptions in both client libraries: each status becomes the class that its users catch."""

import json

import anthropic
import openai
import pytest
from conftest import run_scripted
from test_serve import make_key

HELLO = {"model": "deepseek-flash", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


def openai_ask(server, key, **fields):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=fields.pop("retries", 0))
    return client.chat.completions.create(**{**HELLO, **fields})


def anthropic_ask(server, key, **fields):
    client = anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=fields.pop("retries", 0))
    return client.messages.create(**{**HELLO, **fields})


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    (good, good_record), (other, other_record) = make_key("acme"), make_key("other")
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    file.write_text(json.dumps({"keys": [good_record, {**other_record, "scopes": ["kv:admin"]}]}))
    with run_scripted("--keys", file, "--max-streams", 1, "--max-body-kib", 64) as server:
        server.keys = good, other
        yield server


@pytest.mark.parametrize("library, ask", [(openai, openai_ask), (anthropic, anthropic_ask)], ids=["openai", "anthropic"])
def test_classes(keyed, library, ask):
    good, other = keyed.keys
    assert ask(keyed, good)
    large = [{"role": "user", "content": "x" * 70000}]
    too_large = openai.APIStatusError if library is openai else anthropic.RequestTooLargeError
    for error, status, kind, key, fields in (
            (library.BadRequestError, 400, "invalid_request_error", good, {"messages": []}),
            (library.AuthenticationError, 401, "authentication_error", "wrong", {}),
            (library.PermissionDeniedError, 403, "permission_error", other, {}),
            (too_large, 413, "request_too_large", good, {"messages": large})):
        with pytest.raises(error) as caught:
            ask(keyed, key, **fields)
        assert (caught.value.status_code, caught.value.type) == (status, kind)

    # One request of the key is running already.
    stream = ask(keyed, good, stream=True, max_tokens=100000, extra_headers={"x-request-id": "endless"})
    next(iter(stream))
    with pytest.raises(library.RateLimitError) as caught:
        ask(keyed, good)
    assert caught.value.type == "rate_limit_error" and int(caught.value.response.headers["retry-after"]) >= 1
    stream.close()


@pytest.mark.parametrize("library, ask", [(openai, openai_ask), (anthropic, anthropic_ask)], ids=["openai", "anthropic"])
def test_unavailable(library, ask):
    with run_scripted() as server:
        server.command("drain")
        with pytest.raises(library.InternalServerError if library is openai else anthropic.ServiceUnavailableError) as caught:
            ask(server, "none")
        assert (caught.value.status_code, caught.value.type) == (503, "overloaded_error")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        with pytest.raises(library.NotFoundError):
            if library is openai:
                openai.OpenAI(base_url=server.url + "/v2", api_key="none", max_retries=0).chat.completions.create(**HELLO)
            else:
                anthropic.Anthropic(base_url=server.url + "/v2", api_key="none", max_retries=0).messages.create(**HELLO)


def test_retries_after_a_busy_answer(keyed):
    """The libraries try again by themselves; the second time there is room."""
    good, _ = keyed.keys
    busy = openai_ask(keyed, good, stream=True, max_tokens=100000, extra_headers={"x-request-id": "endless"})
    next(iter(busy))
    with openai.OpenAI(base_url=keyed.url + "/v1", api_key=good, max_retries=4) as client:
        seen = []

        def tried(response):
            seen.append(response.status_code)
            busy.close()

        client._client.event_hooks["response"] = [tried]
        assert client.chat.completions.create(**HELLO).choices[0].finish_reason == "stop"
    assert seen[0] == 429 and seen[-1] == 200
