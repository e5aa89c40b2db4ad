# SPDX-License-Identifier: Apache-2.0
"""Every recorded model output through the unmodified client libraries, which check each event and body strictly: plain calls, streams
and the helpers that put a stream together. Exactly the exceptions below are theirs by design."""

import anthropic
import openai
import pytest
from conftest import run_scripted
from test_conformance import golden

CASES = {api: [pytest.param(case, id=case["id"]) for case in golden("stream") if case["id"].startswith(api)] for api in ("chat", "responses", "messages")}


def arguments(case):
    """The call of the client library, with what it has no parameter for in extra_body."""
    body = {key: value for key, value in case["request"].items() if key not in ("stream", "stream_options")}
    known = {key: body.pop(key) for key in ("model", "messages", "max_tokens", "input") if key in body}
    return {**known, "extra_body": body, "extra_headers": {"x-request-id": case["id"].replace("/", ".")}}


@pytest.fixture(scope="module")
def open_ai(scripted):
    with openai.OpenAI(base_url=scripted.url + "/v1", api_key="none", max_retries=0, _strict_response_validation=True) as made:
        yield made


@pytest.fixture(scope="module")
def claude(scripted):
    with anthropic.Anthropic(base_url=scripted.url, api_key="none", max_retries=0, _strict_response_validation=True) as made:
        yield made


@pytest.mark.parametrize("case", CASES["chat"])
def test_chat(open_ai, case):
    fields = arguments(case)
    whole = open_ai.chat.completions.create(**fields).choices[0]
    chunks = list(open_ai.chat.completions.create(stream=True, **fields))
    content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert content == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    assert chunks[-1].usage is not None

    expected = {"length": openai.LengthFinishReasonError, "content_filter": openai.ContentFilterFinishReasonError}.get(whole.finish_reason)
    try:
        with open_ai.chat.completions.stream(**fields) as stream:
            for _ in stream:
                pass
            helped = stream.get_final_completion().choices[0]
    except (openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError) as error:
        assert type(error) is expected
        return
    assert expected is None
    assert (helped.message.content or "") == whole.message.content
    calls = [[(call.function.name, call.function.arguments) for call in one.message.tool_calls or []] for one in (whole, helped)]
    assert calls[0] == calls[1]


@pytest.mark.parametrize("case", CASES["responses"])
def test_responses(open_ai, case):
    fields = arguments(case)
    whole = open_ai.responses.create(**fields)
    events = list(open_ai.responses.create(stream=True, **fields))
    assert events[0].type == "response.created" and events[-1].response.output_text == whole.output_text

    try:
        with open_ai.responses.stream(**fields) as stream:
            for _ in stream:
                pass
            helped = stream.get_final_response()
    except RuntimeError as error:
        assert whole.status == "incomplete" and "response.completed" in str(error)
        return
    assert whole.status == "completed"
    assert [item.type for item in helped.output] == [item.type for item in whole.output]
    assert helped.output_text == whole.output_text


@pytest.mark.parametrize("case", CASES["messages"])
def test_messages(claude, case):
    fields = arguments(case)
    whole = claude.messages.create(**fields)
    events = list(claude.messages.create(stream=True, **fields))
    assert events[0].type == "message_start" and events[-1].type == "message_stop"

    with claude.messages.stream(**fields) as stream:
        for _ in stream:
            pass
        helped = stream.get_final_message()
    assert (helped.stop_reason, helped.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert [block.type for block in helped.content] == [block.type for block in whole.content]
    assert helped.usage.output_tokens == whole.usage.output_tokens
    unfinished = helped.stop_reason == "max_tokens"
    for one, other in zip(helped.content, whole.content):
        if one.type == "tool_use":
            assert one.name == other.name and (one.input == other.input or unfinished)
        elif one.type == "thinking":
            assert (one.thinking, bool(one.signature)) == (other.thinking, True)
        else:
            assert one.text == other.text


def test_errors_inside_a_stream():
    """A request that the server gives up after the first byte."""
    with run_scripted("--ttft-ms", 500, "--keep-alive-ms", 100) as server:
        headers = {"x-request-id": "silent"}
        hello = [{"role": "user", "content": "Hi"}]
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.APIError, match="no token"):
                list(client.chat.completions.create(model="deepseek-flash", messages=hello, stream=True, extra_headers=headers))
            failed = list(client.responses.create(model="deepseek-flash", input="Hi", stream=True, extra_headers=headers))[-1]
            assert failed.type in ("response.failed", "error")
        with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            with pytest.raises(anthropic.APIStatusError, match="no token"):
                list(client.messages.create(model="deepseek-flash", max_tokens=9, messages=hello, stream=True, extra_headers=headers))
