# SPDX-License-Identifier: Apache-2.0
"""Responses with the unmodified OpenAI client library on the program with the demo model, checked strictly."""

import asyncio
import json

import openai
import pytest
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner
from test_openai import MODEL, PARIS, Forecast, client  # noqa: F401: the fixture

QUESTION = "What is the capital of France?"
TOOL = {"type": "function", "name": "get_weather", "description": "Weather of a city", "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"],
                       "additionalProperties": False}}


def plain(**fields):
    return {"model": MODEL, "input": QUESTION, "temperature": 0, "reasoning": {"effort": "none"}, **fields}


def ask(client, **fields):
    return client.responses.create(**plain(**fields))


def test_answer(client):
    answer = ask(client, instructions="Be brief.", user="u", metadata={"k": "v"}, max_output_tokens=64)
    assert "Paris" in answer.output_text
    assert (answer.status, answer.error, answer.incomplete_details, answer.store) == ("completed", None, None, False)
    assert (answer.instructions, answer.max_output_tokens, answer.user) == ("Be brief.", 64, "u")
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert [item.type for item in answer.output] == ["message"]


def test_stream(client):
    events = list(ask(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == PARIS
    with client.responses.stream(**plain()) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert stream.get_final_response().output_text == PARIS
    assert "".join(deltas) == PARIS


def test_async_client(demo):
    async def main():
        async with openai.AsyncOpenAI(base_url=demo.url + "/v1", api_key="none", max_retries=0, _strict_response_validation=True) as other:
            async def streamed():
                async with other.responses.stream(**plain()) as stream:
                    return (await stream.get_final_response()).output_text

            assert await asyncio.gather(*[streamed() for _ in range(3)]) == [PARIS] * 3
            assert (await ask(other)).output_text == PARIS

    asyncio.run(main())


def test_reasoning(client):
    fields = {"model": MODEL, "input": QUESTION, "max_output_tokens": 48, "include": ["reasoning.encrypted_content"], "store": False}
    answer = client.responses.create(reasoning={"effort": "low", "summary": "auto"}, **fields)
    thought = answer.output[0]
    assert thought.type == "reasoning" and thought.content[0].text and thought.encrypted_content
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    # Handed back as it came, with an item that only a storing server could resolve.
    history = [{"role": "user", "content": QUESTION}, *[item.model_dump(exclude_none=True) for item in answer.output],
               {"type": "item_reference", "id": "rs_unknown"}, {"role": "user", "content": "And of Italy?"}]
    again = client.responses.create(reasoning={"effort": "low"}, **{**fields, "input": history})
    assert again.usage.input_tokens > answer.usage.input_tokens


def test_length(client):
    answer = ask(client, max_output_tokens=3)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    with client.responses.stream(**plain(max_output_tokens=3)) as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"


def test_logprobs(client):
    answer = ask(client, top_logprobs=2, include=["message.output_text.logprobs"])
    logprobs = answer.output[0].content[0].logprobs
    assert "".join(one.token for one in logprobs) == PARIS
    assert all(len(one.top_logprobs) == 2 for one in logprobs)


def test_cached_prefix(client):
    fields = {"instructions": "You know all capitals. " * 60, "max_output_tokens": 1, "extra_body": {"cache_salt": "responses"}}
    usages = [ask(client, **fields).usage for _ in range(2)]
    expected = (usages[0].input_tokens - 1) // 128 * 128
    assert [usage.input_tokens_details.cached_tokens for usage in usages] == [0, expected]


def test_tools_round_trip(client, structured):
    tools = {"tools": [TOOL], "parallel_tool_calls": False}
    answer = ask(client, tool_choice="required", **tools)
    call = answer.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments)["city"] in ("Paris", "Rome")
    with client.responses.stream(**plain(tool_choice="required", **tools)) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        streamed = stream.get_final_response().output[-1]
    assert "".join(deltas) == streamed.arguments == call.arguments
    history = [{"role": "user", "content": QUESTION}, call.model_dump(exclude_none=True),
               {"type": "function_call_output", "call_id": call.call_id, "output": [{"type": "input_text", "text": "sunny"}]}]
    assert ask(client, input=history, max_output_tokens=16, **tools).status in ("completed", "incomplete")
    with pytest.raises(openai.BadRequestError, match="No tool output found for tool call"):
        ask(client, input=history[:2], **tools)


def test_custom_tool(client, structured):
    patch = {"type": "custom", "name": "apply_patch", "description": "Applies a patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}
    answer = ask(client, tools=[patch], tool_choice={"type": "custom", "name": "apply_patch"}, max_output_tokens=48)
    call = answer.output[-1]
    assert (call.type, call.name) == ("custom_tool_call", "apply_patch")
    history = [{"role": "user", "content": QUESTION}, {**call.model_dump(exclude_none=True), "input": "*** Begin Patch\n*** End Patch"},
               {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done"}]
    assert ask(client, input=history, tools=[patch], max_output_tokens=4).output


def test_parsed_answers(client, structured):
    answer = client.responses.parse(**plain(text_format=Forecast, max_output_tokens=64))
    assert isinstance(answer.output_parsed, Forecast)
    with client.responses.stream(**plain(text_format=Forecast, max_output_tokens=64)) as stream:
        assert stream.get_final_response().output_parsed == answer.output_parsed
    tool = openai.pydantic_function_tool(Forecast, name="report")["function"]
    call = client.responses.parse(**plain(tools=[{"type": "function", **tool}], tool_choice="required", max_output_tokens=128)).output[-1]
    assert Forecast.model_validate_json(call.arguments)


def test_tool_runner(client):
    """The library's own loop: it calls what the model asks for, hands reasoning and results back, and ends with a text."""
    seen = []

    def weather(arguments):
        seen.append(arguments)
        return "sunny"

    runner = ResponsesToolRunner(functions=[RegisteredFunction(TOOL, weather)])
    final = runner.run(client, {**plain(max_output_tokens=64)}, max_steps=3)
    assert final.status in ("completed", "incomplete") and all(set(one) == {"city"} for one in seen)


def test_errors(client):
    for fields, message in (({"previous_response_id": "resp_1"}, "previous_response_id is not supported"),
                            ({"input": []}, "Input items array must not be empty"), ({"temperature": 3}, "Invalid temperature value"),
                            ({"tools": [{"type": "custom", "name": "zz"}]}, "Unsupported custom tool")):
        with pytest.raises(openai.BadRequestError, match=message):
            ask(client, **fields)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
