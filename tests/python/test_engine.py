# SPDX-License-Identifier: Apache-2.0
"""LLMEngine, EngineArgs and the names and defaults that users of 0.1.0 know."""

import dataclasses
import inspect
import logging

import pytest

from deepinfer import LLM, EngineArgs, LLMEngine, RequestOutput, SamplingParams


@pytest.fixture(scope="module")
def engine():
    with LLMEngine.from_engine_args(EngineArgs(model="demo", max_num_seqs=8)) as made:
        yield made


def run(engine):
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs + engine.flush_inflight_reqs()


# --- names and defaults -------------------------------------------------------------------------------------------------


def test_sampling_parameters_by_name_order_and_default():
    parameters = list(inspect.signature(SamplingParams).parameters.values())
    assert [(item.name, item.default) for item in parameters] == [
        ("temperature", 1.0),
        ("top_p", 1.0),
        ("top_k", -1),
        ("ignore_eos", False),
        ("max_tokens", 16),
        ("logprobs", False),
        ("prompt_logprobs", False),
        ("top_logprobs", 0),
        ("first_n_token_no_eos", 0),
        ("eos_id", 0),
        ("so_args", None),
        ("golden_token_ids", None),
        ("seq_seed", None),
        ("min_p", 0.0),
        ("presence_penalty", 0.0),
        ("frequency_penalty", 0.0),
        ("repetition_penalty", 1.0),
        ("logit_bias", None),
        ("allowed_token_ids", None),
        ("stop", None),
        ("stop_token_ids", None),
        ("include_stop_str_in_output", False),
        ("min_tokens", 0),
        ("n", 1),
        ("skip_special_tokens", False),
        ("detokenize", True),
        ("priority", 0),
        ("cache_mode", None),
        ("max_output_bytes", None),
        ("timeout_s", None),
        ("seed", None),
    ]


def test_output_fields():
    names = {item.name for item in dataclasses.fields(RequestOutput)}
    assert names >= {
        "request_id",
        "prompt_len",
        "token_id",
        "finish_reason",
        "finished",
        "max_num_batched_tokens",
        "token_logprobs",
        "nextn_logprobs",
        "sum_smaller_probs",
        "top_logprobs",
        "top_token_ids",
        "num_output_tokens",
        "prompt_logprobs",
        "draft_tok",
        "accept_tok",
        "confidence_score",
        "stop_reason",
        "cached_tokens",
    }
    empty = RequestOutput("0", 1)
    assert (empty.token_id, empty.token_logprobs, empty.nextn_logprobs, empty.sum_smaller_probs) == (-1, 1.0, 1.0, -1.0)


def test_engine_arguments_and_defaults():
    args = EngineArgs()
    assert args.served_model_name == "deepinfer-model" and args.seed == 0 and args.ignore_len == 128 << 20
    assert (args.data_parallel_size, args.context_parallel_size, args.expert_parallel_size) == (0, 1, 1)
    assert (args.engram_parallel_size, args.engine_rank, args.engine_group_rank, args.tokens_per_block) == (0, 0, 0, -1)
    assert args.disable_log_stats is False and args.offline_inference is False and args.trust_remote_code is False
    core = args._to_core()
    assert (core.load_format, core.max_model_len, core.gpu_memory_utilization) == ("auto", 4096, 0.9)
    assert (core.max_num_seqs, core.max_num_batched_tokens, core.lookahead_tokens) == (256, 0, 0)
    assert (core.stop_preempted_request, core.chunked_prefill, core.cache_mode) == (True, False, "off")
    assert list(inspect.signature(LLM).parameters) == [
        "model",
        "tokenizer",
        "trust_remote_code",
        "expert_parallel_size",
        "revision",
        "tokenizer_revision",
        "seed",
        "gpu_memory_utilization",
        "decode_sequence",
        "kwargs",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("load_format", "gguf"),
        ("max_model_len", 0),
        ("max_num_batched_tokens", 127),
        ("max_num_seqs", 0),
        ("gpu_memory_utilization", 1.1),
        ("gpu_memory_utilization", 0),
        ("tokens_per_block", 64),
        ("data_parallel_size", 2),
        ("context_parallel_size", 2),
        ("expert_parallel_size", 2),
        ("engram_parallel_size", 2),
        ("engine_rank", 1),
        ("lookahead_tokens", -1),
        ("cache_mode", "on"),
        ("logprobs_mode", "all"),
        ("decoder_replay", "half"),
        ("num_state_slots_ratio", 0.5),
        ("prefill_attempt_interval", 0),
        ("tokenizer", "other"),
    ],
)
def test_bad_engine_arguments_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        EngineArgs(**{name: value})._to_core()


def test_unknown_keys_are_named():
    with pytest.raises(TypeError, match="max_len"):
        LLMEngine.from_engine_args({"model": "demo", "max_len": 5})
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams.from_dict({"temprature": 1})
    assert SamplingParams.from_dict({"seed": 2**64 + 5, "top_k": None}).seq_seed == 5


def test_the_environment_sets_what_is_not_given(monkeypatch):
    monkeypatch.setenv("DEEPINFER_MAX_NUM_SEQS", "3")
    monkeypatch.setenv("DEEPINFER_CACHE_MODE", "exact")
    core = EngineArgs()._to_core()
    assert (core.max_num_seqs, core.cache_mode) == (3, "exact")
    assert EngineArgs(max_num_seqs=9)._to_core().max_num_seqs == 9
    monkeypatch.setenv("DEEPINFER_MAX_NUM_SEQS", "many")
    with pytest.raises(ValueError, match="^DEEPINFER_MAX_NUM_SEQS"):
        EngineArgs()._to_core()


# --- requests -------------------------------------------------------------------------------------------------------------


def test_requests_together_equal_requests_alone(engine, llm, greedy_cases):
    cases = greedy_cases[:6]
    for i, case in enumerate(cases):
        sequence = engine.add_request("u", str(i), SamplingParams(temperature=0, max_tokens=12), case["prompt_ids"])
        assert sequence.request_id == str(i) and not sequence.is_finished
    assert engine.get_num_unfinished_requests() == 6
    outputs = run(engine)
    assert not engine.has_unfinished_requests() and engine.step() == []
    for i, case in enumerate(cases):
        own = [output for output in outputs if output.request_id == str(i)]
        alone = llm.generate(prompt_token_ids=[case["prompt_ids"]], sampling_params=SamplingParams(temperature=0, max_tokens=12))[0]
        assert [output.token_id for output in own if output.token_id >= 0] == alone.token_ids
        assert "".join(output.text for output in own) == alone
        assert [output.finished for output in own] == [False] * (len(own) - 1) + [True]
        assert own[-1].finish_reason == alone.finish_reason
        assert own[0].max_num_batched_tokens == 4096 and own[0].prompt_len == len(case["prompt_ids"])
        assert [output.num_output_tokens for output in own if output.token_id >= 0] == list(range(1, len(alone.token_ids) + 1))


def test_samples_fork_the_prompt(engine, llm):
    ids = engine.encode("Once upon a time")
    sequence = engine.add_request("u", "n", {"n": 3, "seed": 40, "max_tokens": 6, "temperature": 1.0, "top_p": None}, ids)
    outputs = run(engine)
    assert sequence.is_finished and {output.sample for output in outputs} == {0, 1, 2}
    for sample in range(3):
        alone = llm.generate(prompt_token_ids=[ids], sampling_params=SamplingParams(seed=40 + sample, max_tokens=6))[0]
        assert sequence.outputs[sample] == alone.token_ids


def test_abort(engine):
    ids = engine.encode("Tell me everything")
    for name in ("a", "b", "c"):
        engine.add_request("u", name, SamplingParams(max_tokens=2000, ignore_eos=True, temperature=0), ids)
    engine.step()
    num_marked, total = engine.abort_request(["a", "b", "unknown"])
    assert num_marked == 2 and total >= 2 * len(ids)
    assert engine.abort_request("a") == (0, 0)
    later = run_until_only(engine, "c")
    for name in ("a", "b"):
        own = [output for output in later if output.request_id == name]
        assert [output.finish_reason for output in own] == ["abort"] and own[0].token_id == -1
    assert engine.abort_request("c")[0] == 1
    assert run(engine)[-1].finish_reason == "abort"
    assert engine.abort_request("c") == (0, 0)


def run_until_only(engine, name):
    outputs = []
    while {sequence.request_id for sequence in engine._open.values()} - {name}:
        outputs += engine.step()
    return outputs


def test_requests_that_cannot_run(engine, caplog):
    with caplog.at_level(logging.WARNING, "deepinfer"):
        assert engine.add_request("u", "bad", SamplingParams(), [5, 10**6]) is None
    assert "bad is dropped" in caplog.text and "1000000" in caplog.text
    with pytest.raises(ValueError, match="empty"):
        engine.add_request("u", "none", SamplingParams(), [])
    with pytest.raises(TypeError, match="heat"):
        engine.add_request("u", "x", {"heat": 1}, [5])
    with pytest.raises(ValueError, match="stop_token_ids"):
        engine.add_request("u", "x", SamplingParams(stop_token_ids=[10**6]), [5])
    with pytest.raises(NotImplementedError, match="images"):
        engine.add_request("u", "x", SamplingParams(), [5], extra={"multi_modal_data": {"image_bytes": [b""]}})
    with pytest.raises(ValueError, match="chunk_checkpoints"):
        engine.add_request("u", "x", SamplingParams(), [5, 6, 7], chunk_checkpoints=[2, 1])
    assert not engine.has_unfinished_requests()
    engine.add_request("u", "long", SamplingParams(), [5] * 5000)
    assert engine.has_unfinished_requests() and engine.get_num_unfinished_requests() == 1
    (output,) = engine.step()
    assert (output.finish_reason, output.finished, output.token_id) == ("prompt_length_exceeded", True, -1)
    assert not engine.has_unfinished_requests()


def test_enqueue_later_and_checkpoints(engine):
    ids = engine.encode("The capital of France is")
    params = SamplingParams(temperature=0, max_tokens=4)
    sequence = engine.add_request("u", "later", params, ids, enqueue=False, chunk_checkpoints=[2, 4])
    assert not engine.has_unfinished_requests()
    engine.enqueue_request(sequence)
    with pytest.raises(ValueError, match="later"):
        engine.enqueue_request(sequence)
    assert "".join(output.text for output in run(engine)).startswith(" Paris")
    assert sequence.finish_reason == "length" and sequence.first_token_time is not None


def test_counters(engine):
    assert engine.get_num_pendings() == 0
    stats = engine.stats()
    assert stats["num_unfinished"] == 0 and stats["num_used_blocks"] == 0 and stats["num_finished"] > 0
    assert engine.health()["is_healthy"]


def test_close_is_idempotent():
    engine = LLMEngine.from_engine_args(EngineArgs(model="demo", max_num_seqs=2, max_model_len=512))
    engine.add_request("u", "0", SamplingParams(max_tokens=400, ignore_eos=True), [5, 6])
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.step()


def test_shared_prefixes(source_dir):
    args = EngineArgs(model="demo", max_num_seqs=4, decoder_replay="compact", cache_mode="exact", kv_state_every_blocks=1)
    with LLMEngine.from_engine_args(args) as engine:
        ids = engine.encode("The capital of Japan is Tokyo. " * 80)
        assert len(ids) > 400
        params = {"temperature": 0, "max_tokens": 4}
        first = engine.add_request("u", "0", params, ids)
        cold = run(engine)
        second = engine.add_request("u", "1", params, ids)
        warm = run(engine)
        assert first.outputs == second.outputs
        assert cold[0].cached_tokens == 0 and warm[0].cached_tokens >= 128
        engine.add_request("u", "2", {**params, "cache_mode": "off"}, ids)
        assert run(engine)[0].cached_tokens == 0
        engine.add_request("u", "3", params, ids, extra={"cache_salt": "other"})
        assert run(engine)[0].cached_tokens == 0


# --- LLM on the same engine -------------------------------------------------------------------------------------------------


def test_generate_streams_all_prompts(llm):
    prompts = ["The capital of France is", "The capital of Spain is"]
    params = SamplingParams(temperature=0, max_tokens=5)
    stream = llm.generate(prompts, params, stream=True)
    texts = {}
    for output in stream:
        texts[output.request_id] = texts.get(output.request_id, "") + output.text
    assert [texts[name] for name in sorted(texts, key=int)] == [str(text) for text in stream.output]
    assert [str(text) for text in stream.output] == [str(text) for text in llm.generate(prompts, params)]
    with pytest.raises(ValueError, match="stream"):
        llm.generate("a", stream=True, callback=print)


def test_llm_with_a_prefix_cache_answers_alike(llm):
    with LLM("demo", decoder_replay="compact", cache_mode="exact", kv_state_every_blocks=1, max_num_seqs=2) as cached:
        params = SamplingParams(temperature=0, max_tokens=6)
        prompt = "The capital of Japan is Tokyo. " * 80
        first = cached.generate(prompt, params)[0]
        second = cached.generate(prompt, params)[0]
        assert first == second and first.usage["cached_tokens"] == 0 and second.usage["cached_tokens"] >= 128
        # Decoder replay drops prompt rows.
        assert cached.generate("Hello there", SamplingParams(prompt_logprobs=True))[0].prompt_logprobs == []
