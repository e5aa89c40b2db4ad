# SPDX-License-Identifier: Apache-2.0
"""The cases 01 to 12 and 14 of tests/golden/cases through servers; 15 is in test_disconnects.py. 01 to 12 run on the scripted server,
where prompts and grammars are seen as the engine would get them; tests/protocols runs the same cases in every chunking. 13 needs no
server: tests/engine/acceptance."""

import json
import subprocess

import pytest
from conftest import PROGRAM, ROOT, TIMEOUT_S, run_program, run_scripted, sse_events

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
END = "<｜end▁of▁sentence｜>"


def case(number):
    [path] = (ROOT / "tests" / "golden" / "cases").glob(f"{number:02}-*.json")
    return json.loads(path.read_text())


def fold(events):
    """The deltas of a Chat stream put together; on the way: indexes never go back, id and name come once, in an index's first delta."""
    out = {"reasoning_content": "", "content": "", "tool_calls": [], "finish_reason": None}
    last = 0
    for _, chunk in events[:-1]:
        choice = chunk["choices"][0]
        for name in ("reasoning_content", "content"):
            out[name] += choice["delta"].get(name) or ""
        for part in choice["delta"].get("tool_calls") or []:
            assert part["index"] >= last
            last = part["index"]
            is_first = last == len(out["tool_calls"])
            assert ("id" in part, "name" in part["function"]) == (is_first, is_first)
            if is_first:
                out["tool_calls"].append({"name": part["function"]["name"], "arguments": ""})
            out["tool_calls"][last]["arguments"] += part["function"]["arguments"]
        out["finish_reason"] = choice["finish_reason"] or out["finish_reason"]
    return out


def chunkings(text):
    """The named ones, and cuts into two that move on by a prime number of bytes: the library's test makes each of them."""
    raw = text.encode()
    yield [text]
    for size in (1, 2, 3, 5, 7, 11):
        yield [text[i : i + size] for i in range(0, len(text), size)]
    yield [raw[i : i + 1] for i in range(len(raw))]
    for cut in range(13, len(raw), 37):
        yield [raw[:cut], raw[cut:]]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_completions(scripted, number):
    test = case(number)
    for completion in test["completions"]:
        request = completion.get("request") or test["request"]
        for pieces in chunkings(completion["text"]):
            scripted.play("case", [piece for piece in pieces if piece], completion["finish"])
            _, _, text = scripted.request("POST", PATHS["chat"], request, {"x-request-id": "case"})
            assert fold(sse_events(text)) == completion["expect"], (completion["name"], pieces)
            assert END not in text
        whole = scripted.request("POST", PATHS["chat"], {**request, "stream": False}, {"x-request-id": "case"})[2]["choices"][0]
        calls = [{"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in whole["message"].get("tool_calls", [])]
        assert calls == completion["expect"]["tool_calls"]


def test_reasoning_tokens_of_case_03(scripted):
    request = case(3)["completions"][0]["request"]
    for pieces, expected in ((["I", " think", ".", "</think>", "Yes"], 3), (["I", " think", "."], 3)):
        scripted.play("case", pieces)
        usage = sse_events(scripted.request("POST", PATHS["chat"], request, {"x-request-id": "case"})[2])[-2][1]["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == expected
        assert usage["completion_tokens"] == len(pieces)


def tail(prompt):
    return prompt[prompt.index("<｜User｜>") :]


def check_prompt(server, api, item):
    status, _, body = server.request("POST", PATHS[api], item["request"])
    if "expect" in item:
        assert status == item["expect"]["http_status"], item["name"]
        assert body["error"]["type"] == "invalid_request_error" and (body.get("type") == "error") == (api == "messages")
        return
    assert status == 200, body
    prompt = server.last_request()["prompt"]
    if "expect_prompt" in item:
        assert prompt == item["expect_prompt"], item["name"]
    elif "expect_prompt_tail" in item:
        assert tail(prompt) == item["expect_prompt_tail"], item["name"]


def test_case_04(scripted):
    test = case(4)
    for item in test["items"]:
        request = json.loads(json.dumps(test["base_request"]))
        request["messages"][1]["tool_calls"][0]["function"]["arguments"] = item["arguments"]
        check_prompt(scripted, "chat", {**item, "request": request, "name": item["arguments"]})


@pytest.mark.parametrize("number", [5, 6, 8, 10, 11, 12])
def test_prompts(scripted, number):
    test = case(number)
    for item in test["items"]:
        check_prompt(scripted, test["protocol"], item)


def test_strict_policies(scripted):
    """The options of 06 and 07."""
    test = case(6)
    [missing] = [item["request"] for item in test["items"] if item["name"] == test["strict_policy"]["request"]]
    forced = {**case(7)["base_request"], "tool_choice": "required"}
    status, _, refused = scripted.request("POST", PATHS["chat"], forced)
    assert status == 400 and refused["error"]["message"] == "Thinking mode does not support this tool_choice"
    with run_program("--missing-reasoning", "reject", "--tool-choice-thinking", "grammar") as server:
        status, _, body = server.request("POST", PATHS["chat"], missing)
        expect = test["strict_policy"]["expect"]
        assert (status, body["error"]["type"]) == (expect["http_status"], expect["error_type"])
        assert expect["message_mentions"] in body["error"]["message"]
        status, _, body = server.request("POST", PATHS["chat"], {**forced, "max_tokens": 4})
        assert status == 200 or "not in this build" in body["error"]["message"]


def test_case_07(scripted):
    test = case(7)
    for row in test["rows"]:
        request = {**test["base_request"], "tool_choice": row["tool_choice"]}
        if row["thinking"] == "disabled":
            request["thinking"] = {"type": "disabled"}
        expect = row["expect"]
        status, _, body = scripted.request("POST", PATHS["chat"], request)
        assert status == expect["http_status"], (row, body)
        if status != 200:
            continue
        seen = scripted.last_request()
        assert ("## Tools" in seen["prompt"]) == expect["tools_in_prompt"]
        assert seen["prompt"].endswith(expect["prompt_ends_with"])
        assert (seen["grammar"] is not None) == (expect["constraint"] is not None)
        if seen["grammar"]:
            assert seen["grammar"]["type"] == "structural_tag"
            assert ("triggered_tags" in seen["grammar"]["schema"]) == (expect["constraint"] == "tool_call")


def test_case_09(scripted):
    test = case(9)
    scripted.play("case", test["pieces"], prompt_tokens=test["prompt_tokens"], prompt_cache_hit_tokens=test["cached_prompt_tokens"])
    _, _, text = scripted.request("POST", PATHS["messages"], test["request"], {"x-request-id": "case"})
    events = sse_events(text)
    name = events[0][1]["message"]["id"]
    events = sse_events(text.replace(name, test["response_id"]))
    assert [data for _, data in events] == test["expect_events"]
    assert all(event == data["type"] for event, data in events) and "[DONE]" not in text
    usage = events[0][1]["message"]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"] == test["prompt_tokens"]


def test_pings_of_case_09():
    """Every 10 s by default; here every 0.1 s."""
    with run_scripted("--keep-alive-ms", 100, "--ttft-ms", 1000) as server:
        _, _, text = server.request("POST", PATHS["messages"], case(9)["request"], {"x-request-id": "silent"})
    assert text.count("event: ping") + text.count(": keep-alive") >= 2


def test_events_of_case_11(scripted):
    scripted.play("case", ["I ", "think", "</think>", "yes", "."])
    request = {"model": "DeepSeek-V4.1-Flash", "input": "q", "stream": True}
    names = []
    for event, data in sse_events(scripted.request("POST", PATHS["responses"], request, {"x-request-id": "case"})[2]):
        name = event + " ..." if event.endswith(".delta") else event
        if event == "response.output_item.added":
            name += f" ({data['item']['type']})"
        if not names or names[-1] != name:
            names.append(name)
    assert names == case(11)["stream_events_for_thinking"]


def test_grammars_of_case_12(scripted, structured, tmp_path):
    """What the engine gets accepts and rejects as the case says, and begins behind the thinking."""
    for item in case(12)["items"]:
        if "accept" not in item:
            continue
        check_prompt(scripted, "chat", item)
        grammar = scripted.last_request()["grammar"]
        assert grammar["type"] == "json" and len(grammar["trigger"]) == 1
        file = tmp_path / "schema.json"
        file.write_text(grammar["schema"])
        for expected, texts in ((True, item["accept"]), (False, item["reject"])):
            for text in texts:
                out = subprocess.run([PROGRAM, "debug", "grammar", "--schema", file, "--json"], input=text, capture_output=True, text=True,
                                     timeout=TIMEOUT_S).stdout
                assert json.loads(out)["accepts"] == expected, text


def test_limits_survive_strict_closing(scripted):
    """Case 12: the prompt shows the closed schema, the grammar has the client's limits as well."""
    schema = {"type": "object", "required": ["a", "b"], "$defs": {"d": {"type": "string", "pattern": "^x+$"}},
              "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"$ref": "#/$defs/d"}}}
    body = {"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "x"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}}
    assert scripted.request("POST", PATHS["chat"], body)[0] == 200
    grammar = json.loads(scripted.last_request()["grammar"]["schema"])
    assert grammar["properties"]["a"]["maxLength"] == 3 and grammar["$defs"]["d"]["pattern"] == "^x+$" and grammar["additionalProperties"] is False
    body["response_format"]["json_schema"] = {"name": "n", "schema": {"type": "string", "pattern": "("}}
    assert scripted.request("POST", PATHS["chat"], body)[0] == 400


def test_case_14(demo):
    """Each length three times; the engine's own test has the mode exact, evictions and log probabilities."""
    for row in case(14)["rows"]:
        ids = [1000 + i * 7919 % 3000 for i in range(row["length"])]
        body = {"model": "deepseek-flash", "prompt": ids, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "cache_salt": f"case14-{row['length']}"}
        answers = [demo.request("POST", "/v1/completions", body)[2] for _ in range(3)]
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        assert cached == [0, row["max_cached_tokens"], row["max_cached_tokens"]], row
        assert answers[1]["choices"][0]["text"] == answers[2]["choices"][0]["text"]
    off = demo.request("POST", "/v1/completions", {**body, "cache_mode": "off"})[2]
    assert off["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
