# SPDX-License-Identifier: Apache-2.0
"""The unmodified OpenAI client library against the program with the demo model."""

import json

import openai
import pytest
from conftest import run_program

MODEL = "deepseek-flash"
PLAIN = {"thinking": {"type": "disabled"}}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"],
                   "additionalProperties": False}}}]


@pytest.fixture(scope="module")
def client(demo):
    with openai.OpenAI(base_url=demo.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client, **fields):
    """Without thinking, and greedy: the demo model knows the answer, but a sample of it may be another one."""
    extra = {**PLAIN, **fields.pop("extra_body", {})}
    fields.setdefault("temperature", 0)
    return client.chat.completions.create(model=MODEL, messages=fields.pop("messages", FRANCE), extra_body=extra, **fields)


def test_chat(client):
    answer = ask(client)
    assert answer.choices[0].message.content == PARIS
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream(client):
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == PARIS
    assert chunks[-1].usage.completion_tokens == 8
    assert len({chunk.id for chunk in chunks}) == 1


def test_stream_helper(client):
    with client.chat.completions.stream(model=MODEL, messages=FRANCE, temperature=0, extra_body=PLAIN) as stream:
        events = list(stream)
    assert [event.type for event in events][-1] == "content.done"
    assert stream.get_final_completion().choices[0].message.content == PARIS


def test_thinking(client):
    answer = client.chat.completions.create(model=MODEL, messages=FRANCE, max_tokens=64, seed=1)
    assert answer.choices[0].message.reasoning_content is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0


def test_stop_and_length(client):
    stopped = ask(client, stop=["France"])
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("The capital of ", "stop")
    cut = ask(client, max_tokens=3)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 3)


def test_logprobs(client):
    content = ask(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert "".join(token.token for token in content) == PARIS
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in content)


def test_seed(client):
    def tale():
        return client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=24, seed=7, temperature=1.0).choices[0].text

    assert tale() == tale()


def test_tools_round_trip(client, structured):
    first = ask(client, tools=TOOLS, tool_choice="required").choices[0]
    assert first.finish_reason == "tool_calls"
    call = first.message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    history = [*FRANCE, first.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    second = ask(client, messages=history, tools=TOOLS, max_tokens=32)
    assert second.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_tools_stream(client, structured):
    name, arguments = None, ""
    for chunk in ask(client, tools=TOOLS, tool_choice="required", stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            name = name or call.function.name
            arguments += call.function.arguments or ""
    assert name == "get_weather" and json.loads(arguments)


def test_structured_output(client, structured):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
    answer = ask(client, max_tokens=64, response_format={"type": "json_schema", "json_schema": {"name": "digit", "strict": True, "schema": schema}})
    assert 0 <= json.loads(answer.choices[0].message.content)["n"] <= 9


def test_completions(client):
    answer = client.completions.create(model=MODEL, prompt=["The capital of France is", "The opposite of hot is"], max_tokens=2, temperature=0)
    assert [choice.text for choice in answer.choices] == [" Paris.", " cold."]
    several = client.completions.create(model=MODEL, prompt="The capital of France is", n=3, max_tokens=1, seed=1, echo=True)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert all(choice.text.startswith("The capital of France is") for choice in several.choices)
    assert several.usage.completion_tokens == 3
    chunks = list(client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=2, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == " Paris."
    assert chunks[-1].choices[0].finish_reason == "length"


def test_models(client):
    names = [model.id for model in client.models.list()]
    assert "DeepSeek-V4.1-Flash" in names
    assert client.models.retrieve("deepseek-flash").id == "deepseek-flash"


def test_responses(client):
    answer = client.responses.create(model=MODEL, input="What is the capital of France?", temperature=0, reasoning={"effort": "none"})
    assert answer.output_text == PARIS
    assert answer.status == "completed"
    with client.responses.stream(model=MODEL, input="What is the capital of France?", temperature=0, reasoning={"effort": "none"}) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert stream.get_final_response().output_text == PARIS
    assert "".join(deltas) == PARIS


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, temperature=3)
    assert caught.value.body["message"] == "Invalid temperature value, the valid range of temperature is [0, 2]"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="other", messages=FRANCE)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        ask(client, messages=[{"role": "user", "content": "word " * 40000}])


def test_cancelled_stream(demo, client):
    stream = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8000, stream=True, extra_body={"ignore_eos": True})
    for _ in range(3):
        next(stream)
    stream.close()
    import test_http
    test_http.wait_until(lambda: demo.metric("deepinfer_requests_running") == 0)


def test_keys():
    with run_program("--api-key", "a-secret-key") as server:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                ask(client)
        with openai.OpenAI(base_url=server.url + "/v1", api_key="a-secret-key", max_retries=0) as client:
            assert ask(client).choices[0].message.content == PARIS
    assert "a-secret-key" not in "".join(server.log)
