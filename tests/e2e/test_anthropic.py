# SPDX-License-Identifier: Apache-2.0
"""The unmodified Anthropic client library against the program with the demo model."""

import anthropic
import pytest

MODEL = "claude-demo"  # any claude name means the served model
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
PLAIN = {"type": "disabled"}
GREEDY = {"temperature": 0}  # the library has no such parameter any more; a sample may be another answer
TOOLS = [{"name": "get_weather", "description": "Weather of a city",
          "input_schema": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"]}}]


@pytest.fixture(scope="module")
def client(demo):
    with anthropic.Anthropic(base_url=demo.url, api_key="none", max_retries=0) as made:
        yield made


def test_message(client):
    answer = client.messages.create(model=MODEL, max_tokens=64, messages=FRANCE, thinking=PLAIN, extra_body=GREEDY)
    assert answer.content[0].text == PARIS
    assert answer.stop_reason == "end_turn"
    assert answer.usage.output_tokens == 8


def test_stream(client):
    with client.messages.stream(model=MODEL, max_tokens=64, messages=FRANCE, thinking=PLAIN, extra_body=GREEDY) as stream:
        assert "".join(stream.text_stream) == PARIS
        assert stream.get_final_message().usage.output_tokens == 8


def test_thinking(client):
    with client.messages.stream(model=MODEL, max_tokens=64, messages=FRANCE) as stream:
        answer = stream.get_final_message()
    assert answer.content[0].type == "thinking"
    assert answer.content[0].signature


def test_tools(client, structured):
    answer = client.messages.create(model=MODEL, max_tokens=64, messages=FRANCE, thinking=PLAIN, extra_body=GREEDY, tools=TOOLS, tool_choice={"type": "any"})
    assert answer.stop_reason == "tool_use"
    call = answer.content[-1]
    assert call.name == "get_weather" and call.input["city"] in ("Paris", "Rome")
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}
    second = client.messages.create(model=MODEL, max_tokens=16, thinking=PLAIN, tools=TOOLS,
                                    messages=[*FRANCE, {"role": "assistant", "content": answer.content}, result])
    assert second.stop_reason in ("end_turn", "max_tokens", "tool_use")


def test_count_tokens(client):
    count = client.messages.count_tokens(model=MODEL, messages=FRANCE, thinking=PLAIN, extra_body=GREEDY).input_tokens
    assert count == client.messages.create(model=MODEL, max_tokens=1, messages=FRANCE, thinking=PLAIN, extra_body=GREEDY).usage.input_tokens


def test_stop_sequence(client):
    answer = client.messages.create(model=MODEL, max_tokens=64, messages=FRANCE, thinking=PLAIN, extra_body=GREEDY, stop_sequences=["France"])
    assert (answer.stop_reason, answer.stop_sequence, answer.content[0].text) == ("stop_sequence", "France", "The capital of ")


def test_errors(client):
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model=MODEL, max_tokens=0, messages=FRANCE)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["request_id"] == caught.value.response.headers["request-id"]


def test_models(client):
    assert "deepseek-flash" in [model.id for model in client.models.list()]
