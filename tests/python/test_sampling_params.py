# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from deepinfer import SamplingParams


def test_defaults():
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (1.0, 1.0, -1, 16)
    assert params.seq_seed is None and params.n == 1 and params.stop == []


def test_repr_shows_the_named_fields():
    assert repr(SamplingParams(temperature=0.5, seq_seed=7)) == (
        "SamplingParams(temperature=0.5, top_p=1.0, top_k=-1, ignore_eos=False, max_tokens=16, "
        "prompt_logprobs=False, top_logprobs=0, so_args=None, seq_seed=7)"
    )


def test_greedy_switches_the_filters_off():
    params = SamplingParams(temperature=0, top_p=0.5, top_k=3, min_p=0.2)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1e-5, 1.0, -1, 0.0)
    assert params.is_greedy and params._to_core().temperature == 0


def test_max_tokens_zero_becomes_one():
    assert SamplingParams(max_tokens=0).max_tokens == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", 0),
        ("top_k", -2),
        ("top_k", 2**31),
        ("min_p", 2.0),
        ("max_tokens", -5),
        ("max_tokens", 2**31),
        ("min_tokens", 17),
        ("top_logprobs", 1001),
        ("top_logprobs", -1),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0),
        ("allowed_token_ids", []),
        ("stop", ["ok", ""]),
        ("stop_token_ids", [-3]),
        ("n", 0),
        ("n", 16385),
        ("max_output_bytes", 0),
        ("timeout_s", 0),
        ("cache_mode", "sometimes"),
    ],
)
def test_bad_values_are_named(field, value):
    with pytest.raises(ValueError, match=field) as error:
        SamplingParams(**{field: value})
    if isinstance(value, (int, float)):
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        assert shown in str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("seq_seed", "x"), ("seq_seed", 1.5), ("top_k", 2.5), ("temperature", "hot"), ("stop", [1]), ("max_tokens", True)],
)
def test_wrong_types(field, value):
    with pytest.raises(TypeError, match=field):
        SamplingParams(**{field: value})


def test_n_needs_sampling():
    with pytest.raises(ValueError, match="n must be 1 when using greedy sampling"):
        SamplingParams(n=2, temperature=0)


def test_seeds():
    assert SamplingParams(seq_seed=-1).seq_seed == 2**64 - 1
    assert SamplingParams(seed=5).seq_seed == 5
    with pytest.raises(ValueError, match="seed"):
        SamplingParams(seed=5, seq_seed=6)
    shared = SamplingParams()
    assert shared._to_core().random_seed == shared._to_core().random_seed != SamplingParams()._to_core().random_seed


def test_from_dict():
    params = SamplingParams.from_dict({"temperature": 0.7, "top_k": None, "stop": "x"})
    assert params.temperature == 0.7 and params.stop == ["x"]
    with pytest.raises(TypeError, match="topk"):
        SamplingParams.from_dict({"topk": 3})


def test_structured_output_is_checked():
    params = SamplingParams(so_args={"schema_type": "json", "schema": {"type": "object"}, "trigger_token_ids": [5], "bound_token_id": 6})
    assert "so_args={'schema_type': 'json'" in repr(params)
    SamplingParams(so_args={"schema_type": "json_object"})
    SamplingParams(so_args={"schema_type": "choice", "schema": ["a", "b"]})
    with pytest.raises(KeyError, match="schema"):
        SamplingParams(so_args={"schema_type": "regex"})
    with pytest.raises(TypeError, match="so_args"):
        SamplingParams(so_args="a+")
    for bad in ({"serialized": "x"}, {"bound_token_ids": [1]}, {"speed": 3}, {"strict": 1}, {"max_whitespace_cnt": 0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            SamplingParams(so_args={"schema_type": "regex", "schema": "a", **bad})
    with pytest.raises(ValueError, match="schema"):
        SamplingParams(so_args={"schema_type": "regex", "schema": 5})
    # These end the request instead, as in 0.1.0.
    SamplingParams(so_args={"schema_type": "poem", "schema": "a"})
    SamplingParams(so_args={"schema_type": "regex", "schema": "a", "bound_token_id": 3})
    SamplingParams(so_args={"schema_type": "regex", "schema": "a", "trigger_token_ids": [True]})
