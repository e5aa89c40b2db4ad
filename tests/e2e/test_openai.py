# SPDX-License-Identifier: Apache-2.0
"""Chat Completions, Completions and models with the unmodified OpenAI client library on the program with the demo model. The library
checks every body and event strictly."""

import asyncio
import json
from typing import Literal

import openai
import pydantic
import pytest
from conftest import run_program, wait_until

MODEL = "deepseek-flash"
PLAIN = {"thinking": {"type": "disabled"}}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"],
                   "additionalProperties": False}}}]


class Forecast(pydantic.BaseModel):
    city: Literal["Paris", "Rome"]
    degrees: int = pydantic.Field(ge=0, le=9)
    sunny: bool


@pytest.fixture(scope="module")
def client(demo):
    with openai.OpenAI(base_url=demo.url + "/v1", api_key="none", max_retries=0, _strict_response_validation=True) as made:
        yield made


@pytest.fixture(scope="module")
def lenient(demo):
    """For Completions with streams or echo: the library's strict types lack the nulls that OpenAI itself sends there."""
    with openai.OpenAI(base_url=demo.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def plain(**fields):
    """Without thinking, and greedy: the demo model knows the answer, but a sample of it may be another one."""
    fields["extra_body"] = {**PLAIN, **fields.get("extra_body", {})}
    return {"model": MODEL, "messages": FRANCE, "temperature": 0, **fields}


def ask(client, **fields):
    return client.chat.completions.create(**plain(**fields))


def text_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_chat(client):
    answer = ask(client)
    assert answer.choices[0].message.content == PARIS
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream(client):
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == PARIS
    assert chunks[-1].usage.completion_tokens == 8
    assert len({chunk.id for chunk in chunks}) == 1


def test_stream_helper(client):
    with client.chat.completions.stream(**plain()) as stream:
        events = list(stream)
    assert [event.type for event in events][-1] == "content.done"
    assert stream.get_final_completion().choices[0].message.content == PARIS


def test_raw_and_streaming_responses(client):
    raw = client.chat.completions.with_raw_response.create(**plain(extra_headers={"x-request-id": "mine-1"}))
    assert raw.headers["x-request-id"] == "mine-1" and raw.parse()._request_id == "mine-1"
    with client.chat.completions.with_streaming_response.create(**plain(stream=True)) as response:
        assert list(response.iter_lines())[-2] == "data: [DONE]"


def test_async_client(demo):
    async def main():
        async with openai.AsyncOpenAI(base_url=demo.url + "/v1", api_key="none", max_retries=0, _strict_response_validation=True) as client:
            async def streamed():
                return text_of([chunk async for chunk in await ask(client, stream=True)])

            async def helped():
                async with client.chat.completions.stream(**plain()) as stream:
                    return (await stream.get_final_completion()).choices[0].message.content

            whole = ask(client)
            legacy = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=2, temperature=0)
            streams = await asyncio.gather(*[streamed() for _ in range(6)], helped())
            assert streams == [PARIS] * 7
            assert (await whole).choices[0].message.content == PARIS
            assert (await legacy).choices[0].text == " Paris."
            assert "deepseek-flash" in [model.id async for model in client.models.list()]

    asyncio.run(main())


def test_thinking(client):
    answer = client.chat.completions.create(model=MODEL, messages=FRANCE, max_tokens=64, seed=1)
    assert answer.choices[0].message.reasoning_content is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    chunks = list(client.chat.completions.create(model=MODEL, messages=FRANCE, max_tokens=64, seed=1, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == answer.choices[0].message.reasoning_content
    assert text_of(chunks) == answer.choices[0].message.content
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == answer.usage.completion_tokens_details.reasoning_tokens
    assert ask(client).usage.completion_tokens_details is None


def test_effort(client):
    def prompt_tokens(**fields):
        return client.chat.completions.create(model=MODEL, messages=FRANCE, max_tokens=1, **fields).usage.prompt_tokens

    off = ask(client, max_tokens=1).usage.prompt_tokens
    assert prompt_tokens(reasoning_effort="none") == off
    for effort in ("minimal", "low", "medium", "high", "xhigh"):
        assert prompt_tokens(reasoning_effort=effort) > off
    assert prompt_tokens(extra_body={"reasoning_effort": 33}) > off
    assert prompt_tokens(extra_body={"chat_template_kwargs": {"enable_thinking": False}}) == off
    with pytest.raises(openai.BadRequestError, match=r"valid range of reasoning_effort is \[1, 100\]"):
        prompt_tokens(extra_body={"reasoning_effort": 101})


def test_stop_and_length(client):
    stopped = ask(client, stop=["France"])
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("The capital of ", "stop")
    assert text_of(ask(client, stop="France", stream=True)) == "The capital of "
    for limit in ({"max_tokens": 3}, {"max_completion_tokens": 3}):
        cut = ask(client, **limit)
        assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 3)


def test_logprobs(client):
    content = ask(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert "".join(token.token for token in content) == PARIS
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in content)
    assert all(token.top_logprobs[0].token == token.token for token in content)  # greedy
    chunks = ask(client, logprobs=True, top_logprobs=2, stream=True)
    streamed = [token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert [(token.token, token.logprob) for token in streamed] == [(token.token, token.logprob) for token in content]


def test_seed(client):
    def tale(seed):
        return ask(client, max_tokens=24, seed=seed, temperature=1.0, messages=[{"role": "user", "content": "Tell a story"}]).choices[0].message.content

    assert tale(7) == tale(7)
    assert len({tale(seed) for seed in range(5)}) > 1


def test_cached_prefix(client):
    messages = [{"role": "system", "content": "You know all capitals. " * 60}, *FRANCE]
    usages = [ask(client, messages=messages, max_tokens=1, extra_body={"cache_salt": "test_cached_prefix"}).usage for _ in range(2)]
    expected = (usages[0].prompt_tokens - 1) // 128 * 128
    assert [usage.prompt_tokens_details.cached_tokens for usage in usages] == [0, expected]
    assert (usages[1].prompt_cache_hit_tokens, usages[1].prompt_cache_miss_tokens) == (expected, usages[1].prompt_tokens - expected)
    last = list(ask(client, messages=messages, max_tokens=1, stream=True, extra_body={"cache_salt": "test_cached_prefix"}))[-1]
    assert last.usage.prompt_tokens_details.cached_tokens == expected


def test_fields_of_other_servers(client):
    """What agents send by habit changes nothing."""
    answer = ask(client, messages=[{"role": "developer", "content": "Be brief."}, {**FRANCE[0], "name": "someone"}], user="u", metadata={"k": "v"}, store=True,
                 service_tier="auto", parallel_tool_calls=True, prompt_cache_key="k", safety_identifier="s", verbosity="low", n=1,
                 presence_penalty=0, frequency_penalty=0, logit_bias={}, modalities=["text"], extra_body={"provider": {"order": []}, "top_k": 40})
    assert "Paris" in answer.choices[0].message.content


def test_tools_round_trip(client, structured):
    first = ask(client, tools=TOOLS, tool_choice="required").choices[0]
    assert first.finish_reason == "tool_calls"
    call = first.message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    history = [*FRANCE, first.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    second = ask(client, messages=history, tools=TOOLS, max_tokens=32)
    assert second.choices[0].finish_reason in ("stop", "length", "tool_calls")
    named = ask(client, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "get_weather"}}).choices[0]
    assert named.message.tool_calls[0].function.arguments == call.function.arguments
    assert ask(client, tools=TOOLS, tool_choice="none").choices[0].message.tool_calls is None


def test_tools_stream(client, structured):
    whole = ask(client, tools=TOOLS, tool_choice="required").choices[0].message.tool_calls[0].function
    with client.chat.completions.stream(**plain(tools=TOOLS, tool_choice="required")) as stream:
        events = list(stream)
        call = stream.get_final_completion().choices[0].message.tool_calls[0].function
    assert (call.name, call.arguments) == (whole.name, whole.arguments)
    deltas = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(deltas) == whole.arguments


def test_parsed_answers(client, structured):
    answer = client.chat.completions.parse(**plain(response_format=Forecast, max_tokens=64)).choices[0].message
    assert isinstance(answer.parsed, Forecast)
    with client.chat.completions.stream(**plain(response_format=Forecast, max_tokens=64)) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == answer.parsed
    tool = openai.pydantic_function_tool(Forecast, name="report")  # strict
    call = client.chat.completions.parse(**plain(tools=[tool], tool_choice="required", max_tokens=128)).choices[0].message.tool_calls[0]
    assert isinstance(call.function.parsed_arguments, Forecast)
    while_thinking = client.chat.completions.parse(model=MODEL, messages=FRANCE, response_format=Forecast, max_tokens=400, seed=1).choices[0].message
    assert isinstance(while_thinking.parsed, Forecast) and while_thinking.reasoning_content is not None


def test_other_formats(client, structured):
    words = [{"role": "user", "content": "A digit, as json"}]
    regex = ask(client, messages=words, response_format={"type": "regex", "regex": "[0-9]{3}"})
    assert regex.choices[0].message.content.isdigit() and len(regex.choices[0].message.content) == 3
    loose = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"], "additionalProperties": False}
    given = ask(client, messages=words, max_tokens=64, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": loose}})
    assert 0 <= json.loads(given.choices[0].message.content)["n"] <= 9
    with pytest.raises(openai.BadRequestError, match="must contain the word 'json'"):
        ask(client, response_format={"type": "json_object"})
    with pytest.raises(openai.BadRequestError, match="Invalid json schema"):
        ask(client, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nothing"}}})


def test_completions(client, lenient):
    answer = client.completions.create(model=MODEL, prompt=["The capital of France is", "The opposite of hot is"], max_tokens=2, temperature=0)
    assert [choice.text for choice in answer.choices] == [" Paris.", " cold."]
    several = client.completions.create(model=MODEL, prompt="The capital of France is", n=3, max_tokens=1, seed=1, echo=True)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert all(choice.text.startswith("The capital of France is") for choice in several.choices)
    assert several.usage.completion_tokens == 3
    chunks = list(lenient.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=2, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == " Paris."
    assert chunks[-1].choices[0].finish_reason == "length"


def test_completions_of_tokens(demo, lenient):
    ids = demo.request("POST", "/tokenize", {"text": "The capital of France is"})[2]["ids"]
    for prompt in (ids, [ids]):
        answer = lenient.completions.create(model=MODEL, prompt=[0, *ids] if prompt is ids else [[0, *ids]], max_tokens=2, temperature=0, echo=True, logprobs=2)
        choice = answer.choices[0]
        assert choice.text.endswith("The capital of France is Paris.")
        assert "".join(choice.logprobs.tokens) == choice.text
        assert all(value <= 0 for value in choice.logprobs.token_logprobs[-2:])
        assert len(choice.logprobs.text_offset) == len(choice.logprobs.tokens) == len(choice.logprobs.top_logprobs)


def test_fill_in_the_middle(demo, client):
    try:
        answer = client.completions.create(model=MODEL, prompt="def add(a, b):\n", suffix="\nprint(add(1, 2))", max_tokens=8, temperature=0)
    except openai.BadRequestError as error:  # a checkpoint without the tokens for it
        assert "suffix" in error.body["message"]
    else:
        assert answer.choices[0].finish_reason in ("stop", "length")


def test_models(client):
    names = [model.id for model in client.models.list()]
    assert "DeepSeek-V4.1-Flash" in names
    assert client.models.retrieve("deepseek-flash").id == "deepseek-flash"


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, temperature=3)
    assert caught.value.body["message"] == "Invalid temperature value, the valid range of temperature is [0, 2]"
    assert (caught.value.type, caught.value.param, bool(caught.value.request_id)) == ("invalid_request_error", None, True)
    for fields in ({"n": 2}, {"model": "other"}, {"messages": []}, {"top_logprobs": 2}, {"tools": [TOOLS[0], TOOLS[0]]}, {"max_tokens": 10**7}):
        with pytest.raises(openai.BadRequestError):
            ask(client, **fields)
        with pytest.raises(openai.BadRequestError):  # before the stream begins
            ask(client, stream=True, **fields)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError):
        client.files.list()
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        ask(client, messages=[{"role": "user", "content": "word " * 40000}])


def test_cancelled(demo, lenient):
    endless = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8000, "extra_body": {"ignore_eos": True}}
    stream = lenient.completions.create(stream=True, **endless)
    for _ in range(3):
        next(stream)
    stream.close()
    wait_until(lambda: demo.metric("deepinfer_requests_running") == 0)

    async def main():
        async with openai.AsyncOpenAI(base_url=demo.url + "/v1", api_key="none", max_retries=0) as other:
            task = asyncio.create_task(other.completions.create(**endless))
            while demo.metric("deepinfer_requests_running") == 0:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    wait_until(lambda: demo.metric("deepinfer_requests_running") == 0)


def test_keys_and_prompt_logprobs():
    """Log probabilities of prompts need every row of the prompt: --decoder-replay off."""
    with run_program("--api-key", "a-secret-key", "--decoder-replay", "off") as server:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                ask(client)
        with openai.OpenAI(base_url=server.url + "/v1", api_key="a-secret-key", max_retries=0) as client:
            assert ask(client).choices[0].message.content == PARIS
            answer = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=2, temperature=1.0, seed=1, echo=True, logprobs=2)
            logprobs = answer.choices[0].logprobs
            assert "".join(logprobs.tokens) == answer.choices[0].text
            assert all(value is not None and value <= 0 for value in logprobs.token_logprobs)
    assert "a-secret-key" not in "".join(server.log)
