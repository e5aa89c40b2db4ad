# SPDX-License-Identifier: Apache-2.0
"""The unmodified Anthropic client library on the program with the demo model. The library checks every body and event strictly."""

import asyncio
from typing import Literal

import anthropic
import pydantic
import pytest
from anthropic import beta_tool
from conftest import wait_until

MODEL = "claude-demo"  # any claude name means the served model
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
TOOLS = [{"name": "get_weather", "description": "Weather of a city",
          "input_schema": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"]}}]


class Forecast(pydantic.BaseModel):
    city: Literal["Paris", "Rome"]
    sunny: bool


@pytest.fixture(scope="module")
def client(demo):
    with anthropic.Anthropic(base_url=demo.url, api_key="none", max_retries=0, _strict_response_validation=True) as made:
        yield made


def plain(**fields):
    """Greedy: the library has no parameter for it any more, and a sample may be another answer."""
    fields["extra_body"] = {"temperature": 0, **fields.get("extra_body", {})}
    return {"model": MODEL, "max_tokens": 64, "messages": FRANCE, "thinking": {"type": "disabled"}, **fields}


def ask(client, **fields):
    return client.messages.create(**plain(**fields))


def test_message(client):
    answer = ask(client)
    assert answer.content[0].text == PARIS
    assert (answer.stop_reason, answer.model, answer.role) == ("end_turn", MODEL, "assistant")
    assert answer.usage.output_tokens == 8


def test_stream(client):
    events = list(ask(client, stream=True))
    assert [event.type for event in events][:2] == ["message_start", "content_block_start"]  # the library drops the ping behind them
    assert events[0].message.usage.input_tokens > 0 and events[-2].usage.output_tokens == 8
    with client.messages.stream(**plain()) as stream:
        assert "".join(stream.text_stream) == PARIS
        assert stream.get_final_message().usage.output_tokens == 8


def test_async_client(demo):
    async def main():
        async with anthropic.AsyncAnthropic(base_url=demo.url, api_key="none", max_retries=0, _strict_response_validation=True) as client:
            async def streamed():
                async with client.messages.stream(**plain()) as stream:
                    return "".join([text async for text in stream.text_stream])

            assert await asyncio.gather(*[streamed() for _ in range(4)]) == [PARIS] * 4
            assert (await ask(client)).content[0].text == PARIS
            assert (await client.messages.count_tokens(model=MODEL, messages=FRANCE)).input_tokens > 0

    asyncio.run(main())


def test_thinking(client):
    fields = {"model": MODEL, "max_tokens": 64, "messages": FRANCE, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    with client.messages.stream(**fields) as stream:
        answer = stream.get_final_message()
    thought = answer.content[0]
    assert thought.type == "thinking" and thought.signature
    history = [*FRANCE, {"role": "assistant", "content": [thought.model_dump(exclude_none=True), {"type": "text", "text": "Paris."}]},
               {"role": "user", "content": "Sure?"}]
    assert client.messages.create(**{**fields, "messages": history, "max_tokens": 4}).content
    assert client.messages.create(**{**fields, "thinking": {"type": "adaptive"}, "max_tokens": 4}).content[0].type == "thinking"


def test_effort(client):
    def tokens(**fields):
        return client.messages.count_tokens(model=MODEL, messages=FRANCE, **fields).input_tokens

    assert tokens(thinking={"type": "disabled"}) < tokens(thinking={"type": "enabled", "budget_tokens": 2000}, output_config={"effort": "low"})
    for effort in ("low", "medium", "high", "xhigh", "max"):
        assert tokens(output_config={"effort": effort}) > 0
    with pytest.raises(anthropic.BadRequestError):
        tokens(output_config={"effort": "immense"})


def test_tools(client, structured):
    tools = {"tools": TOOLS, "tool_choice": {"type": "any"}}
    answer = ask(client, **tools)
    assert answer.stop_reason == "tool_use"
    call = answer.content[-1]
    assert call.name == "get_weather" and call.input["city"] in ("Paris", "Rome")
    with client.messages.stream(**plain(**tools)) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        assert stream.get_final_message().content[-1].input == call.input
    assert "".join(parts)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}], "is_error": False}
    history = [*FRANCE, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    second = ask(client, messages=history, tools=TOOLS, max_tokens=16)
    assert second.stop_reason in ("end_turn", "max_tokens", "tool_use")
    with pytest.raises(anthropic.BadRequestError, match="without `tool_result` blocks"):
        ask(client, messages=history[:2], tools=TOOLS)


def test_tool_runner(client, structured):
    """The library's own loop. It first asks the server to hold the conversation; told that this one does not, it sends all of it."""
    asked = []

    @beta_tool
    def get_weather(city: Literal["Paris", "Rome"]) -> str:
        """Weather of a city

        Args:
            city: which
        """
        asked.append(city)
        return "sunny"

    runner = client.beta.messages.tool_runner(max_iterations=3, **plain(tools=[get_weather], tool_choice={"type": "any"}))
    inputs = [message.usage.input_tokens + message.usage.cache_read_input_tokens for message in runner]
    assert len(inputs) == 3 and len(asked) >= 2
    assert inputs == sorted(set(inputs))  # each turn holds those before it
    with pytest.raises(anthropic.BadRequestError, match="thread is not supported"):
        client.beta.messages.create(**plain(thread={"type": "create"}))


def test_parsed_answers(client, structured):
    answer = client.messages.parse(**plain(output_format=Forecast))
    assert isinstance(answer.parsed_output, Forecast)
    with client.messages.stream(**plain(output_format=Forecast)) as stream:
        assert stream.get_final_message().parsed_output == answer.parsed_output


def test_cached_prefix(client):
    fields = {"system": [{"type": "text", "text": "You know all capitals. " * 60, "cache_control": {"type": "ephemeral"}}], "max_tokens": 1,
              "extra_body": {"cache_salt": "anthropic"}}
    first, second = ask(client, **fields).usage, ask(client, **fields).usage
    assert (first.cache_read_input_tokens, first.cache_creation_input_tokens) == (0, 0)
    assert second.cache_read_input_tokens == (first.input_tokens - 1) // 128 * 128
    assert second.input_tokens + second.cache_read_input_tokens == first.input_tokens
    start = next(iter(ask(client, stream=True, **fields)))
    assert start.message.usage.cache_read_input_tokens == second.cache_read_input_tokens


def test_count_tokens(client):
    count = client.messages.count_tokens(model=MODEL, messages=FRANCE, thinking={"type": "disabled"}, system="Be brief.", tools=TOOLS).input_tokens
    assert count == ask(client, max_tokens=1, system="Be brief.", tools=TOOLS, extra_body={"cache_salt": "count"}).usage.input_tokens


def test_stop_sequence(client):
    answer = ask(client, stop_sequences=["France"])
    assert (answer.stop_reason, answer.stop_sequence, answer.content[0].text) == ("stop_sequence", "France", "The capital of ")
    assert ask(client, max_tokens=3).stop_reason == "max_tokens"


def test_cancelled(demo, client):
    stream = ask(client, max_tokens=8000, stream=True, messages=[{"role": "user", "content": "Tell a story"}], extra_body={"temperature": 1, "seed": 3})
    for _ in range(3):
        next(stream)
    stream.close()
    wait_until(lambda: demo.metric("deepinfer_requests_running") == 0)


def test_errors(client):
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, max_tokens=0)
    assert (caught.value.body["type"], caught.value.type) == ("error", "invalid_request_error")
    assert caught.value.body["request_id"] == caught.value.request_id == caught.value.response.headers["request-id"]
    for fields in ({"messages": []}, {"model": "other"}, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}):
        with pytest.raises(anthropic.BadRequestError):
            ask(client, **fields)
        with pytest.raises(anthropic.BadRequestError):
            ask(client, stream=True, **fields)
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")


def test_models(client):
    assert "deepseek-flash" in [model.id for model in client.models.list()]
    assert client.models.retrieve("deepseek-flash").lifecycle == "active"
