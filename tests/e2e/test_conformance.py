# SPDX-License-Identifier: Apache-2.0
"""The golden cases of tests/golden/protocols through the socket: requests become the recorded prompts or errors, recorded model
output, in the recorded pieces and in random ones, becomes the recorded events and bodies."""

import json
import random
import re
import zlib

import pytest
from conftest import ROOT, sse_events

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
# Where the server differs on purpose (golden/protocols/README.md): test_differences holds what it does instead.
DIFFERENT = {
    "chat/stream-tool-badjson", "messages/stream-tool-badjson", "responses/stream-tool-badjson", "chat/stream-tool-no-string-attr",
    "chat/stream-end-pname-quote", "chat/file-nested", "chat/err-strict-format", "chat/err-strict-anyof-member",
    "chat/err-strict-type-list-object", "chat/err-strict-int-fraction", "chat/err-msgs-developer", "chat/param-mct",
    "messages/tool-err-custom", "messages/tc-any", "messages/tc-any-think", "messages/err-model", "chat/err-unknown-model",
    "messages/msgs-err-redacted", "responses/param-ignored",
}


def golden(kind):
    for api in PATHS:
        with open(ROOT / "tests" / "golden" / "protocols" / f"{api}_{kind}.jsonl", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def cases(kind):
    return [pytest.param(case, id=case["id"]) for case in golden(kind) if case["id"] not in DIFFERENT]


def test_every_case_is_here():
    every = [case["id"] for kind in ("convert", "stream") for case in golden(kind)]
    assert len(every) == len(set(every)) == 448
    assert DIFFERENT <= set(every)


def body_of(case):
    return case["request_text"] if "request_text" in case else json.dumps(case["request"], ensure_ascii=False)


def prompt_tokens(api, body):
    """From a whole response or from the events of a stream."""
    if isinstance(body, str):
        events = [data for _, data in sse_events(body) if data != "[DONE]"]
        if api == "chat":
            return events[-1]["usage"]["prompt_tokens"]
        body = events[0]["message"] if api == "messages" else events[-1]["response"]
    usage = body["usage"]
    if api == "messages":
        return usage["input_tokens"] + usage["cache_read_input_tokens"]
    return usage["input_tokens" if api == "responses" else "prompt_tokens"]


@pytest.mark.parametrize("case", cases("convert"))
def test_request(scripted, case):
    api, expect = case["id"].split("/")[0], case["expect"]
    status, _, body = scripted.request("POST", PATHS[api], body_of(case))
    if "error" in expect:
        assert status == expect["error"]["status"], body
        if expect["error"].get("stage") == "convert":
            assert {**body, "type": None, "request_id": None} == {**expect["error"]["body"], "type": None, "request_id": None}
        else:
            assert body["error"]["type"] == "invalid_request_error"
        return
    if expect["ok"].get("images"):
        assert status == 400 and "images are not in this version" in body["error"]["message"]
        return
    assert status == 200, body
    assert prompt_tokens(api, body) == len(expect["ok"]["token_ids"])
    assert scripted.last_request()["prompt"] == expect["ok"]["prompt"]
    if api == "messages":
        assert scripted.request("POST", "/v1/messages/count_tokens", body_of(case))[2] == {"input_tokens": len(expect["ok"]["token_ids"])}


def normalized(text, response_id):
    """JSON without what differs from run to run."""
    text = text.replace(response_id, "ID")
    text = re.sub(r"call_(\d\d)_[A-Za-z0-9]{20}\d{4}", r"call_\1_X", text)

    def fix(value):
        if isinstance(value, list):
            return [fix(one) for one in value]
        if not isinstance(value, dict):
            return value
        out = {}
        for key, one in value.items():
            if key in ("created", "created_at") or (key == "completed_at" and one is not None):
                one = 0
            if key in ("sequence_number", "reasoning_tokens"):
                continue  # events are merged; reasoning tokens of text pieces are counted differently
            out[key] = fix(one)
        if out.get("object") in ("chat.completion", "chat.completion.chunk", "response") or out.get("type") == "message" and "model" in out:
            out["model"] = "MODEL"
        return out

    return fix(json.loads(text))


def merged(api, events):
    """Neighbouring deltas of one target as one: where they are cut is free."""
    out = []
    for name, data in events:
        before = out[-1][1] if out else None
        if isinstance(data, dict) and isinstance(before, dict) and name == out[-1][0] and merge(api, before, data):
            continue
        out.append((name, data))
    return out


def merge(api, a, b):
    if api == "chat":
        if not (a.get("choices") and b.get("choices")) or "error" in b:
            return False
        x, y = a["choices"][0], b["choices"][0]
        if x["finish_reason"] or y["finish_reason"] or "role" in x["delta"]:
            return False
        if set(x["delta"]) != set(y["delta"]) or (x["logprobs"] is None) != (y["logprobs"] is None):
            return False
        if "tool_calls" in x["delta"]:
            p, q = x["delta"]["tool_calls"][0], y["delta"]["tool_calls"][0]
            if p["index"] != q["index"] or "id" in p or "id" in q:
                return False
            p["function"]["arguments"] += q["function"]["arguments"]
            return True
        for key in x["delta"]:
            if (x["delta"][key] is None) != (y["delta"][key] is None):
                return False
        for key, value in y["delta"].items():
            if value is not None:
                x["delta"][key] += value
        for key, value in (y["logprobs"] or {}).items():
            x["logprobs"].setdefault(key, []).extend(value)
        return True
    if api == "messages":
        if a["type"] != "content_block_delta" or a["index"] != b["index"] or a["delta"]["type"] != b["delta"]["type"]:
            return False
        for key in ("text", "thinking", "partial_json"):
            if key in a["delta"]:
                a["delta"][key] += b["delta"][key]
                return True
        return False
    if not a["type"].endswith(".delta") or a["item_id"] != b["item_id"]:
        return False
    a["delta"] += b["delta"]
    if "logprobs" in a:
        a["logprobs"] += b["logprobs"]
    return True


def assert_same(got, want, path=""):
    if isinstance(want, float) or isinstance(got, float):
        assert got == pytest.approx(want, abs=1e-6), path
    elif isinstance(want, dict):
        assert isinstance(got, dict) and set(got) == set(want), f"{path}: {got} != {want}"
        for key in want:
            assert_same(got[key], want[key], f"{path}.{key}")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), f"{path}: {got} != {want}"
        for i, (one, other) in enumerate(zip(got, want)):
            assert_same(one, other, f"{path}[{i}]")
    else:
        assert got == want, path


def response_id(api, data):
    if api == "chat":
        return data["id"]
    return data.get("message", data)["id"] if api == "messages" else data.get("response", data)["id"]


def drop_counts(value):
    """Without usage: which piece counts how many tokens is not the subject."""
    if isinstance(value, dict):
        return {key: drop_counts(one) for key, one in value.items() if key != "usage"}
    return [drop_counts(one) for one in value] if isinstance(value, list) else value


def check_output(server, case, script, counts=True):
    api, expect = case["id"].split("/")[0], case["expect"]
    headers = {"x-request-id": script}
    request = {key: value for key, value in case["request"].items() if key not in ("stream", "stream_options")}
    seen = (lambda value: value) if counts else drop_counts

    status, _, body = server.request("POST", PATHS[api], request, headers)
    assert status == 200, body
    got = normalized(json.dumps(body), response_id(api, body))
    want = normalized(json.dumps(expect["response"]), "ID")
    if case["system_fingerprint"] is not None:
        got["system_fingerprint"] = want["system_fingerprint"]
    if api == "responses":  # ours has one more count
        got["usage"]["input_tokens_details"].pop("cache_write_tokens", None)
        want["usage"]["input_tokens_details"].pop("cache_write_tokens", None)
    assert_same(seen(got), seen(want))

    if not case["request"].get("stream"):
        return
    status, _, text = server.request("POST", PATHS[api], case["request"], headers)
    assert status == 200, text
    events = sse_events(text)
    if expect["sse_done"]:
        assert events.pop() == (None, "[DONE]")
    if api == "responses":
        assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    name = response_id(api, events[0][1])
    got = merged(api, [(event, normalized(json.dumps(data), name)) for event, data in events])
    want = merged(api, [(one["event"], normalized(json.dumps(one["data"]), "ID")) for one in expect["events"] if one["data"] != "[DONE]"])
    if api == "chat" and case["system_fingerprint"] is not None:
        for _, data in got:
            data["system_fingerprint"] = case["system_fingerprint"]
    if api == "responses":
        for _, data in got + want:
            if usage := (data.get("response") or {}).get("usage"):
                usage["input_tokens_details"].pop("cache_write_tokens", None)
    assert_same([[event, seen(data)] for event, data in got], [[event, seen(data)] for event, data in want])


@pytest.mark.parametrize("case", cases("stream"))
def test_output(scripted, case):
    check_output(scripted, case, case["id"].replace("/", "."))


def recut(chunks, dice):
    """The same output in other pieces: texts cut at any byte, token ids in other groups."""
    text = b"".join(chunk["text"].encode() for chunk in chunks if "text" in chunk)
    ids = [(one, (chunk.get("logprobs") or [None] * len(chunk["ids"]))[i]) for chunk in chunks if "ids" in chunk for i, one in enumerate(chunk["ids"])]
    whole = text or ids
    pieces = []
    while whole:
        size = dice.choice((1, 1, 2, 3, 5, 8, 40))
        piece, whole = whole[:size], whole[size:]
        if isinstance(piece, bytes):
            pieces.append(piece)
        else:
            logprobs = [one for _, one in piece]
            pieces.append({"ids": [one for one, _ in piece], "logprobs": None if None in logprobs else logprobs})
    return pieces


@pytest.mark.parametrize("case", cases("stream"))
def test_output_in_other_pieces(scripted, case):
    dice = random.Random(zlib.crc32(case["id"].encode()))
    script = case["id"].replace("/", ".") + ".recut"
    scripted.play(script, recut(case["chunks"], dice), case["finish"], **(case["prompt_usage"] or {}))
    check_output(scripted, case, script, counts=False)


def test_differences(scripted):
    golden_cases = {case["id"]: case for kind in ("convert", "stream") for case in golden(kind) if case["id"] in DIFFERENT}

    def ask(name):
        case = golden_cases.pop(name)
        api = name.split("/")[0]
        body = case["request"] if "request" in case else json.loads(case["request_text"])
        status, _, answer = scripted.request("POST", PATHS[api], {**body, "stream": False}, {"x-request-id": name.replace("/", ".")})
        return status, answer

    def message(name):
        status, answer = ask(name)
        assert status == 400
        return answer["error"]["message"]

    # Model output that is no JSON, or lacks an attribute.
    assert ask("chat/stream-tool-badjson")[1]["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"n": "oops"}'
    assert [one["input"] for one in ask("messages/stream-tool-badjson")[1]["content"] if one["type"] == "tool_use"] == [{"n": "oops"}]
    assert [one["arguments"] for one in ask("responses/stream-tool-badjson")[1]["output"] if one["type"] == "function_call"] == ['{"n": "oops"}']
    assert ask("chat/stream-tool-no-string-attr")[1]["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": "x"}'
    assert ask("chat/stream-end-pname-quote")[1]["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"ab": '
    # Requests that the recorded library refuses or reads otherwise.
    assert ask("chat/err-msgs-developer")[0] == 200
    assert ask("chat/param-mct")[0] == 200 and scripted.last_request()["max_tokens"] == 5
    assert ask("messages/tool-err-custom")[0] == 200
    assert ask("messages/tc-any")[0] == 200 and scripted.last_request()["prompt"].endswith("<｜DSML｜ calls>\n")
    assert ask("messages/tc-any-think")[0] == 200 and scripted.last_request()["prompt"].endswith("<think>")
    assert ask("messages/err-model")[0] == 200
    assert ask("messages/msgs-err-redacted")[0] == 200
    assert message("responses/param-ignored") == "previous_response_id is not supported"
    assert message("chat/err-unknown-model").startswith("The supported API model names are DeepSeek-V4.1-Flash, ")
    assert "images are not in this version" in message("chat/file-nested")
    for name in ("format", "anyof-member", "type-list-object", "int-fraction"):
        assert message(f"chat/err-strict-{name}").startswith("Invalid tool parameters schema : ")
    assert not golden_cases
