# SPDX-License-Identifier: Apache-2.0
"""Agents: loops of tool calls whose prefix hits follow the formula of cases/14, and the bodies that coding agents send."""

import json
import subprocess

import anthropic
import openai
import pytest
from conftest import PROGRAM, TIMEOUT_S

MODEL = "deepseek-flash"
BLOCK = WINDOW = 128
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
SYSTEM = "You are an agent with one tool, and you use it in every turn. " * 12


def rendered(api, body):
    """The token ids of a request's prompt, by the program's own renderer."""
    out = subprocess.run([PROGRAM, "debug", "render", "--api", api, "--json"], input=json.dumps(body), capture_output=True, text=True,
                         timeout=TIMEOUT_S, check=True).stdout
    return json.loads(out)["ids"]


class Chat:
    def __init__(self):
        tool = {"type": "function", "function": {"name": "weather", "description": "Weather of a city", "parameters": PARAMETERS, "strict": True}}
        self.history = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Go on"}]
        self.fixed = {"model": MODEL, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0, "max_tokens": 64,
                      "thinking": {"type": "disabled"}, "cache_salt": "loop-chat"}

    def body(self):
        return {**self.fixed, "messages": self.history}

    def ask(self, url, body):
        with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(model=MODEL, messages=body["messages"], extra_body=body)
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls"
        self.history = [*self.history, choice.message.model_dump(exclude_none=True)]
        self.call = choice.message.tool_calls[0].id
        return answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens, answer.usage.completion_tokens

    def give(self, result):
        self.history = [*self.history, {"role": "tool", "tool_call_id": self.call, "content": result}]


class Responses:
    def __init__(self):
        tool = {"type": "function", "name": "weather", "description": "Weather of a city", "parameters": PARAMETERS, "strict": True}
        self.history = [{"role": "user", "content": "Go on"}]
        self.fixed = {"model": MODEL, "instructions": SYSTEM, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0,
                      "max_output_tokens": 64, "reasoning": {"effort": "none"}, "store": False, "cache_salt": "loop-responses"}

    def body(self):
        return {**self.fixed, "input": self.history}

    def ask(self, url, body):
        with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
            answer = client.responses.create(extra_body=body)
        assert answer.status == "completed" and answer.output[-1].type == "function_call"
        self.history = [*self.history, *[item.model_dump(exclude_none=True) for item in answer.output]]
        self.call = answer.output[-1].call_id
        return answer.usage.input_tokens, answer.usage.input_tokens_details.cached_tokens, answer.usage.output_tokens

    def give(self, result):
        self.history = [*self.history, {"type": "function_call_output", "call_id": self.call, "output": result}]


class Messages:
    def __init__(self):
        # No parameters: this protocol has no strict tools, and an untrained model may say one again and again.
        tool = {"name": "weather", "description": "Weather outside", "input_schema": {"type": "object", "properties": {}}}
        self.history = [{"role": "user", "content": "Go on"}]
        self.fixed = {"model": MODEL, "system": SYSTEM, "tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "temperature": 0,
                      "max_tokens": 64, "thinking": {"type": "disabled"}, "cache_salt": "loop-messages"}

    def body(self):
        return {**self.fixed, "messages": self.history}

    def ask(self, url, body):
        with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
            answer = client.messages.create(model=MODEL, max_tokens=64, messages=body["messages"], extra_body=body)
        assert answer.stop_reason == "tool_use"
        self.history = [*self.history, {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]}]
        self.call = answer.content[-1].id
        usage = answer.usage
        return usage.input_tokens + usage.cache_read_input_tokens, usage.cache_read_input_tokens, usage.output_tokens

    def give(self, result):
        self.history = [*self.history, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": self.call, "content": result}]}]


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def hit(num_known, length):
    """Rules of cases/14 for the mode replay: whole blocks, never the last token, never the window alone."""
    blocks = min(num_known, length - 1) // BLOCK * BLOCK
    return blocks if blocks > WINDOW else 0


@pytest.mark.parametrize("agent", [Chat, Responses, Messages])
def test_loop(demo, structured, agent):
    agent, api = agent(), agent.__name__.lower()
    place = 24  # where in a block each prompt ends: an answer behind it completes no block, so that only prompts are cached
    agent.history[-1]["content"] += " now" * ((place - len(rendered(api, agent.body()))) % BLOCK)
    before, num_before, num_result, markup = [], 0, 0, 30
    for turn in range(10):
        body = agent.body()
        ids = rendered(api, body)
        length, cached, num_output = agent.ask(demo.url, body)
        assert length == len(ids)
        known = common(before, ids)
        assert known // BLOCK == (len(before) + num_before) // BLOCK
        assert cached == hit(known, length), f"turn {turn}"
        assert cached > 0 or turn == 0
        if turn > 0:
            markup = length - len(before) - num_before - num_result
        before, num_before = ids, num_output
        num_result = (place - length - num_output - markup) % BLOCK + BLOCK
        agent.give("sun" + " sun" * (num_result - 1))


CODING_TOOLS = [{"name": name, "description": f"{name}s a file. " + "Read the rules of this tool with care. " * 2,
                 "input_schema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False, "required": ["file_path"],
                                  "properties": {"file_path": {"type": "string", "description": "absolute"}, "limit": {"type": "number", "exclusiveMinimum": 0},
                                                 "mode": {"type": "string", "enum": ["a", "b"], "default": "a"}}}}
                for name in ("Read", "Edit", "Bash", "TodoWrite", "mcp__ide__getDiagnostics")]
CODING_TOOLS[-1]["cache_control"] = {"type": "ephemeral"}


def coding_request(number, messages, **fields):
    """As a coding agent with Anthropic's protocol sends it."""
    system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{number}; cc_entrypoint=cli; cch={number:05x};"},
              {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
              {"type": "text", "text": "Rules of the house. " * 40, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    return {"model": "claude-sonnet-9", "max_tokens": 48, "system": system, "messages": messages, "tools": CODING_TOOLS, "temperature": 1,
            "metadata": {"user_id": "user_0_account__session_1"}, "thinking": {"type": "enabled", "budget_tokens": 31999}, "output_config": {"effort": "medium"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "cache_salt": "coding", **fields}


CODING_HEADERS = {"anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,fine-grained-tool-streaming-2025-05-14",
                  "x-app": "cli", "user-agent": "claude-cli/2.1.0 (external, cli)", "anthropic-dangerous-direct-browser-access": "true",
                  "Authorization": "Bearer none"}


def test_coding_agent_with_messages(demo, structured):
    reminder = {"type": "text", "text": "<system-reminder>\nAs you answer, use this context.\n</system-reminder>\n"}
    question = {"role": "user", "content": [reminder, {"type": "text", "text": "Fix the bug", "cache_control": {"type": "ephemeral"}}]}
    assert demo.request("HEAD", "/")[0] == 200  # is somebody there?
    with anthropic.Anthropic(base_url=demo.url, auth_token="none", max_retries=0, default_headers=CODING_HEADERS, _strict_response_validation=True) as client:
        def ask(number, messages, **fields):
            body = coding_request(number, messages, **fields)
            required = {name: body.pop(name) for name in ("model", "max_tokens", "messages")}
            with client.beta.messages.stream(extra_body=body, **required) as stream:
                return stream.get_final_message()

        probe = ask(1, [{"role": "user", "content": "quota"}], max_tokens=1, tools=[], thinking={"type": "disabled"})
        assert probe.stop_reason == "max_tokens"
        first = ask(2, [question])
        assert first.content[0].type == "thinking" and first.usage.cache_read_input_tokens == 0
        # The header's new value does not reach the prompt (cases/08), so the rest is a hit.
        second = ask(3, [question])
        assert second.usage.cache_read_input_tokens == (first.usage.input_tokens - 1) // BLOCK * BLOCK > 0
        call = {"type": "tool_use", "id": "toolu_01", "name": "Read", "input": {"file_path": "/a.py"}}
        history = [question, {"role": "assistant", "content": [first.content[0].model_dump(exclude_none=True), {"type": "text", "text": "I read it."}, call]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01", "content": [{"type": "text", "text": "1\timport os"}],
                                                 "cache_control": {"type": "ephemeral"}}, reminder]}]
        assert ask(4, history).usage.cache_read_input_tokens > 0
        body = coding_request(5, history)
        counted = client.beta.messages.count_tokens(model=body["model"], messages=history, tools=CODING_TOOLS, system=body["system"], thinking=body["thinking"],
                                                    extra_body={"output_config": body["output_config"]})
        assert counted.input_tokens == len(rendered("messages", body))


def test_coding_agent_with_responses(demo, structured):
    shell = {"type": "function", "name": "shell", "description": "Runs a command", "strict": False,
             "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}, "timeout_ms": {"type": "number"}},
                            "required": ["command"], "additionalProperties": False}}
    patch = {"type": "custom", "name": "apply_patch", "description": "Edits files", "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin\nbegin: \"x\""}}
    fields = {"model": MODEL, "instructions": "You are a coding agent. " * 40, "tools": [shell, patch, {"type": "web_search", "external_web_access": False}],
              "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False,
              "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199-cafe", "text": {"verbosity": "low"}, "service_tier": "auto",
              "client_metadata": {"originator": "cli"}, "max_output_tokens": 48, "cache_salt": "coding-responses"}
    environment = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<environment_context>\n<cwd>/</cwd>\n</environment_context>"}]}
    question = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix the bug"}]}
    headers = {"originator": "codex_cli_rs", "session_id": "0199", "conversation_id": "0199", "OpenAI-Beta": "responses=experimental", "User-Agent": "codex_cli_rs/0.99"}
    with openai.OpenAI(base_url=demo.url + "/v1", api_key="none", max_retries=0, default_headers=headers, _strict_response_validation=True) as client:
        def ask(items):
            events = list(client.responses.create(stream=True, extra_body={**fields, "input": items}))
            assert events[-1].type in ("response.completed", "response.incomplete")
            done = [event.item for event in events if event.type == "response.output_item.done"]
            assert [item.id for item in done] == [item.id for item in events[-1].response.output]
            return events[-1].response

        first = ask([environment, question])
        thoughts = [item.model_dump() for item in first.output if item.type == "reasoning"]  # nulls as well
        call = {"type": "function_call", "id": None, "call_id": "call_1", "name": "shell", "arguments": "{\"command\":[\"ls\"]}", "status": "completed"}
        edit = {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin Patch\n*** End Patch", "status": "completed"}
        results = [{"type": "function_call_output", "call_id": "call_1", "output": "{\"output\":\"a.py\",\"metadata\":{\"exit_code\":0}}"},
                   {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done"}]
        opaque = {"type": "reasoning", "id": "rs_9", "summary": [{"type": "summary_text", "text": "s"}], "content": None, "encrypted_content": "gAAAA"}
        for reasoning in (*thoughts, opaque):
            again = ask([environment, question, reasoning, call, edit, *results])
            assert again.usage.input_tokens_details.cached_tokens > 0


def test_editor_agent_with_chat(demo, structured):
    """Content in parts with cache marks, large tools, usage in the stream."""
    tools = [{"type": "function", "function": {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}} for tool in CODING_TOOLS]
    parts = [{"type": "text", "text": "Rules of the house. " * 40, "cache_control": {"type": "ephemeral"}}]
    messages = [{"role": "system", "content": parts}, {"role": "user", "content": [{"type": "text", "text": "Fix the bug"}]},
                {"role": "assistant", "content": None, "reasoning_content": "I read it.", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "Read", "arguments": "{\"file_path\": \"/a.py\"}"}}]},
                {"role": "tool", "tool_call_id": "c1", "name": "Read", "content": [{"type": "text", "text": "import os"}]}]
    with openai.OpenAI(base_url=demo.url + "/v1", api_key="none", max_retries=0, _strict_response_validation=True) as client:
        for num_cached in (0, None):
            chunks = list(client.chat.completions.create(model=MODEL, messages=messages, tools=tools, max_tokens=24, stream=True, tool_choice="auto", parallel_tool_calls=True,
                                                         stream_options={"include_usage": True}, reasoning_effort="medium", extra_body={"cache_salt": "editor"}))
            usage = chunks[-1].usage
            expected = (usage.prompt_tokens - 1) // BLOCK * BLOCK if num_cached is None else 0
            assert usage.prompt_tokens_details.cached_tokens == expected
