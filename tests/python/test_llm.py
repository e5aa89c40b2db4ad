# SPDX-License-Identifier: Apache-2.0
import _thread
import json
import re
import threading

import pytest

import deepinfer
from deepinfer import LLM, SamplingParams

GREEDY = dict(temperature=0, max_tokens=40, skip_special_tokens=True)
GAP = 0.3  # continuations agree up to the first step with a smaller gap (tests/golden/tiny/README.md)


def test_greedy_equals_the_stored_continuations(llm, greedy_cases):
    outputs = llm.generate(
        prompt_token_ids=[case["prompt_ids"] for case in greedy_cases], sampling_params=SamplingParams(**GREEDY)
    )
    assert len(outputs) == len(greedy_cases)
    complete = 0
    for case, output in zip(greedy_cases, outputs):
        want = case["qat16"]
        certain = next((i for i, gap in enumerate(want["gap_to_second"]) if gap < GAP), len(want["ids"]))
        assert output.token_ids[:certain] == want["ids"][:certain], case["prompt"]
        if certain == len(want["ids"]):
            complete += 1
            assert output == want["text"]
    assert complete > 0


def test_outputs_are_strings_with_attributes(llm):
    params = SamplingParams(temperature=0, max_tokens=4, top_logprobs=3)
    [output] = llm.generate("The capital of", params)
    assert isinstance(output, str) and output.text == output
    assert len(output.token_ids) == len(output.logprobs) == 4
    assert [len(best) for best in output.top_logprobs] == [3] * 4
    assert output.top_logprobs[0][0][0] == output.token_ids[0]
    assert output.finish_reason == "length" and output.stop_reason is None
    assert output.usage["completion_tokens"] == 4
    assert output.timing["ttft_s"] > 0
    assert llm.get_tokenizer().decode(output.token_ids) == output


def test_seeds_repeat(llm):
    params = SamplingParams(seq_seed=3, max_tokens=20, ignore_eos=True)
    first, again = llm.generate(["Tell me", "Tell me"], params)
    other = llm.generate("Tell me", SamplingParams(seq_seed=4, max_tokens=20, ignore_eos=True))[0]
    assert first.token_ids == again.token_ids != other.token_ids
    # A shared object without a seed has drawn one, so its requests share it too.
    shared = SamplingParams(max_tokens=20, ignore_eos=True)
    one, two = llm.generate(["Tell me", "Tell me"], shared)
    assert one.token_ids == two.token_ids


def test_parallel_samples(llm):
    params = SamplingParams(seq_seed=10, n=3, max_tokens=10, temperature=1.5, ignore_eos=True)
    [output] = llm.generate("The capital of", params)
    assert len(output.samples) == 3 and output.samples[0] is output
    single = llm.generate("The capital of", SamplingParams(seq_seed=12, max_tokens=10, temperature=1.5, ignore_eos=True))[0]
    assert output.samples[2].token_ids == single.token_ids


def test_stop_string(llm, greedy_cases):
    [output] = llm.generate(
        prompt_token_ids=[greedy_cases[0]["prompt_ids"]], sampling_params=SamplingParams(**GREEDY, stop="can I")
    )
    assert output == "Hello! How " and output.finish_reason == "stop" and output.stop_reason == "can I"


def test_stream_pieces_make_the_whole(llm, greedy_cases):
    ids = greedy_cases[0]["prompt_ids"]
    pieces = list(llm.stream(ids, SamplingParams(**GREEDY)))
    assert "".join(piece.text for piece in pieces) == "Hello! How can I help you?"
    assert [piece.finished for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].finish_reason == "stop"
    assert [piece.num_output_tokens for piece in pieces] == list(range(1, len(pieces) + 1))


def test_closing_a_stream_ends_the_request(llm):
    stream = llm.stream("Tell me", SamplingParams(max_tokens=4000, ignore_eos=True))
    next(stream)
    with pytest.raises(RuntimeError, match="stream"):
        llm.generate("Hi")
    stream.close()
    assert len(llm.generate("Hi", SamplingParams(max_tokens=1))) == 1


def test_callback_can_end_a_request(llm):
    seen = []

    def on_token(output):
        seen.append(output)
        return len(seen) < 3

    [output] = llm.generate("Tell me", SamplingParams(max_tokens=50, ignore_eos=True), callback=on_token)
    assert len(output.token_ids) == 3 and output.finish_reason == "abort"


def test_callback_errors_come_through(llm):
    def fail(output):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        llm.generate("Tell me", SamplingParams(max_tokens=50), callback=fail)


def test_prompts_together_equal_prompts_alone(llm, source_dir):
    prompts = ["The capital of", "Tell me", "Hi", "One two three", "Write a story about a fox"]
    params = [
        SamplingParams(temperature=0, max_tokens=9),
        SamplingParams(seq_seed=1, max_tokens=20, ignore_eos=True, frequency_penalty=0.5),
        SamplingParams(seq_seed=2, max_tokens=12, n=3),
        SamplingParams(temperature=0, max_tokens=30, stop=["e", "a"], min_tokens=2, top_logprobs=2),
        SamplingParams(max_tokens=15),
    ]
    outputs = llm.generate(prompts, params)
    assert [int(output.request_id) for output in outputs] == [int(outputs[0].request_id) + i for i in range(5)]
    for prompt, param, output in zip(prompts, params, outputs):
        [alone] = llm.generate(prompt, param)
        assert output == alone and output.token_ids == alone.token_ids and output.logprobs == alone.logprobs
        assert (output.finish_reason, output.stop_reason) == (alone.finish_reason, alone.stop_reason)
        assert [sample.token_ids for sample in output.samples] == [sample.token_ids for sample in alone.samples]
    assert llm.generate([]) == []
    with LLM(source_dir / "models/demo", decode_sequence=False, max_num_seqs=2) as engine:
        for tokens, output in zip(engine.generate(prompts, params), outputs):
            assert [t.token_id for t in tokens] == [i for sample in output.samples for i in sample.token_ids]
            assert "".join(t.text for t in tokens) == "".join(output.samples)
            assert tokens[-1].finished and tokens[-1].stop_reason == output.samples[-1].stop_reason


def test_callbacks_of_prompts_together(llm):
    params = SamplingParams(max_tokens=30, ignore_eos=True, seq_seed=4)
    seen: dict[str, int] = {}

    def on_token(output):
        seen[output.request_id] = seen.get(output.request_id, 0) + 1
        return not (int(output.request_id) % 2 == 0 and seen[output.request_id] >= 3)

    for output in llm.generate(["Tell me"] * 4, params, callback=on_token):
        stopped = int(output.request_id) % 2 == 0
        assert len(output.token_ids) == (3 if stopped else 30)
        assert output.finish_reason == ("abort" if stopped else "length")

    def fail(output):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        llm.generate(["Tell me", "Hi"], params, callback=fail)
    timer = threading.Timer(0.3, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["Tell me"] * 3, SamplingParams(max_tokens=4000, min_tokens=4000, ignore_eos=True))
    timer.join()
    assert llm.generate("Hi", SamplingParams(max_tokens=1))


def test_ctrl_c_ends_generation(llm):
    timer = threading.Timer(0.3, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate("Tell me", SamplingParams(max_tokens=4000, min_tokens=4000, ignore_eos=True))
    timer.join()
    assert llm.generate("Hi", SamplingParams(max_tokens=1))


def test_other_threads_run_meanwhile(llm):
    counter = 0
    done = threading.Event()

    def count():
        nonlocal counter
        while not done.is_set():
            counter += 1

    worker = threading.Thread(target=count)
    worker.start()
    llm.generate("Tell me", SamplingParams(max_tokens=100, ignore_eos=True))
    done.set()
    worker.join()
    assert counter > 1000


def test_decode_sequence_off_gives_tokens(source_dir):
    with LLM(source_dir / "models/demo", decode_sequence=False) as engine:
        [outputs] = engine.generate("The capital of", SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=True))
        assert [output.num_output_tokens for output in outputs] == [1, 2, 3]
        assert outputs[-1].finished and not outputs[0].finished
        assert len(outputs[0].prompt_logprobs) == outputs[0].prompt_len - 1


def test_chat(llm):
    answer = llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(**GREEDY), thinking=False)
    assert answer.content == str(answer) == "Hello! How can I help you?"
    assert answer.finish_reason == "stop"
    assert answer.message == {"role": "assistant", "content": answer.content}


def test_chat_thinking_and_a_second_turn(llm):
    params = SamplingParams(temperature=0, max_tokens=200)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    answer = llm.chat(messages, params)
    assert "Paris" in answer.content and answer.reasoning_content
    messages += [answer.message, {"role": "user", "content": "What is the capital of Italy?"}]
    assert llm.chat(messages, params).content


def test_chat_stream(llm):
    stream = llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(**GREEDY), thinking=False, stream=True)
    assert "".join(delta.content for delta in stream) == "Hello! How can I help you?"
    assert stream.output.content == "Hello! How can I help you?"


def test_chat_with_tools(llm):
    tools = [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Current weather of a city",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
    ]
    answer = llm.chat(
        [{"role": "user", "content": "What is the weather in Paris?"}],
        SamplingParams(temperature=0, max_tokens=200),
        tools=tools,
        thinking=False,
    )
    for call in answer.tool_calls:
        assert call["id"].startswith("call_0")
        json.loads(call["function"]["arguments"])
    assert (answer.finish_reason == "tool_calls") == bool(answer.tool_calls)


def test_prompts_that_cannot_run_give_outputs(llm):
    params = SamplingParams(max_tokens=2, temperature=0)
    outputs = llm.generate(prompt_token_ids=[[1] * 5000, [10**6], [2**40], [5]], sampling_params=params)
    assert [output.finish_reason for output in outputs] == [
        "prompt_length_exceeded",
        "invalid_token",
        "invalid_token",
        "length",
    ]


def test_bad_arguments(llm):
    with pytest.raises(ValueError, match="prompts"):
        llm.generate()
    with pytest.raises(ValueError, match="empty"):
        llm.generate("")
    with pytest.raises(ValueError, match="2 prompts but 1"):
        llm.generate(["a", "b"], prompt_token_ids=[[1]])
    with pytest.raises(ValueError, match="sampling_params"):
        llm.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(TypeError, match="prompt"):
        llm.generate([3.5])
    with pytest.raises(ValueError, match="stop_token_ids"):
        llm.generate("a", SamplingParams(stop_token_ids=[10**6]))
    with pytest.raises(NotImplementedError, match="images"):
        llm.generate("a", multi_modal_data={"image_bytes": [b"x"], "image_sizes": [(1, 1)]})
    with pytest.raises(ValueError, match="effort"):
        llm.chat([{"role": "user", "content": "x"}], effort=101)
    with pytest.raises(ValueError, match="role"):
        llm.chat([{"content": "x"}])
    with pytest.raises(ValueError):
        llm.chat([])


def test_loading_errors_name_the_problem(tmp_path):
    with pytest.raises(deepinfer.ModelError, match="no-such-model"):
        LLM(tmp_path / "no-such-model")
    with pytest.raises(deepinfer.ModelError, match="config.json"):
        LLM(tmp_path)
    with pytest.raises(TypeError, match="max_modellen"):
        LLM("demo", max_modellen=5)
    with pytest.raises(ValueError, match="numerics|fp16"):
        LLM("demo", numerics="fp16")
    with pytest.raises(ValueError, match="expert_parallel_size"):
        LLM("demo", expert_parallel_size=2)
    with pytest.raises(ValueError, match="max_model_len"):
        LLM("demo", max_model_len=0)


def test_close_is_idempotent(source_dir):
    engine = LLM(source_dir / "models/demo", max_model_len=256)
    assert engine.max_model_len == 256
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate("a")


def _answer(output):
    # Either end token ends a text; only one of them is special.
    return output.text.removesuffix("<|EOT|>")


def _has_grammars(llm):
    params = SamplingParams(max_tokens=2, skip_special_tokens=True, so_args={"schema_type": "regex", "schema": "b"})
    return _answer(llm.generate("a", params)[0]) == "b"


def test_structured_output(llm):
    try:
        if not _has_grammars(llm):
            pytest.fail("a grammar is not kept")
    except NotImplementedError:
        pytest.skip("this build has no grammar library")
    date = SamplingParams(max_tokens=30, seq_seed=1, skip_special_tokens=True, so_args={"schema_type": "regex", "schema": r"\d{4}-\d{2}"})
    for output in llm.generate(["The date is ", "Hello"], date):
        assert re.fullmatch(r"\d{4}-\d{2}", _answer(output)), output.text
    [bad] = llm.generate("a", SamplingParams(so_args={"schema_type": "regex", "schema": "("}))
    assert bad.finish_reason == "xgrammar runtime errors or timeout" and bad.token_ids == [0] and bad.text == ""
    [unknown] = llm.generate("a", SamplingParams(so_args={"schema_type": "poem", "schema": "("}))
    assert unknown.finish_reason == "xgrammar runtime errors or timeout"

    question = [{"role": "user", "content": "A city as json"}]
    schema = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Berne", "Rome"]}, "people": {"type": "integer", "maximum": 9, "minimum": 0}}}
    params = SamplingParams(max_tokens=120, seq_seed=2)
    answer = llm.chat(
        question, params, thinking=False, response_format={"type": "json_schema", "json_schema": {"name": "c", "strict": True, "schema": schema}}
    )
    parsed = json.loads(answer.content)
    assert parsed["city"] in ("Berne", "Rome") and 0 <= parsed["people"] <= 9
    with pytest.raises(ValueError):
        llm.chat(question, params, thinking=False, response_format={"type": "regex", "regex": "(a"})

    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("look", "write")]
    for choice in ("required", {"type": "function", "function": {"name": "write"}}):
        answer = llm.chat(question, params, tools=tools, tool_choice=choice, thinking=False, parallel_tool_calls=False)
        assert answer.finish_reason == "tool_calls" and len(answer.tool_calls) == 1
        assert isinstance(choice, str) or answer.tool_calls[0]["function"]["name"] == "write"
    with pytest.raises(ValueError, match="[Tt]hinking"):
        llm.chat(question, params, tools=tools, tool_choice="required")
    with pytest.raises(ValueError, match="tool_choice"):
        llm.chat(question, params, tools=tools, tool_choice="write", thinking=False)
