# SPDX-License-Identifier: Apache-2.0
"""SamplingParams: how the next token is chosen and when a request ends."""

from __future__ import annotations

import json
import operator
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from . import _core

SAMPLING_EPS = 1e-5
"""Below this temperature a request is greedy."""

_MASK64 = (1 << 64) - 1


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


def _integer_in_range(name: str, value: Any, bits: int) -> int:
    number = _integer(name, value)
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ValueError(f"{name} is {number}, which is out of range")
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def _ids(name: str, value: Iterable[int]) -> list[int]:
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be a list of token ids, got {value!r}")
    return [_integer_in_range(name, item, 32) for item in value]


def _so_args_json(value: Any) -> str:
    if not isinstance(value, Mapping):
        raise TypeError(f"so_args must be a dict, got {value!r}")
    if "schema" not in value and value.get("schema_type") != "json_object":
        raise KeyError("so_args lacks the key 'schema'")
    return json.dumps({key: item for key, item in value.items() if item is not None}, ensure_ascii=False)


class SamplingParams:
    """How the next token is chosen and when a request ends.

    Every bad value raises ``ValueError`` (wrong type: ``TypeError``) naming the field and the value.

    Args:
        temperature: >= 0. Below 1e-5 the request is greedy: the best token, ties to the lowest id; ``temperature`` becomes
            1e-5, ``top_p`` 1 and ``top_k`` -1.
        top_p: in (0, 1]; tokens are kept until their probabilities sum to it. 1 is off.
        top_k: number of best tokens kept; -1 is off.
        ignore_eos: the end token does not stop the request.
        max_tokens: output tokens, 1 to 2^31-1 (0 is taken as 1).
        logprobs: accepted and ignored; the log probability of the chosen token is always returned.
        prompt_logprobs: also return the prompt's log probabilities (prompt length - 1 values).
        top_logprobs: best (token id, log probability) pairs per output token, 0 to 1000.
        first_n_token_no_eos: 1: the first output token may not be the end token.
        eos_id: accepted and ignored; the engine knows the end token.
        so_args: structured output, a dict: ``schema_type`` ("json", "json_object", "regex", "ebnf", "choice",
            "structural_tag", "lark") and ``schema`` (text; a dict for "json" and "structural_tag", a list of strings for
            "choice"); optional ``trigger_token_ids`` (the grammar starts behind these output tokens), ``bound_token_id``,
            ``strict``, ``any_order``, ``any_whitespace``, ``max_whitespace_cnt``. A grammar that does not compile ends the
            request with the finish reason "xgrammar runtime errors or timeout" and one token, id 0.
        golden_token_ids: forced output tokens by position; -1 leaves a position free.
        seq_seed: explicit seed, taken modulo 2^64: the output is then the same in every batch and with every draft length.
            None: 64 random bits, drawn once here, so requests that share the object share them.
        min_p: in [0, 1]; drop tokens with p < min_p * p_max, before top-p and top-k.
        presence_penalty, frequency_penalty: in [-2, 2], on output tokens.
        repetition_penalty: > 0, on prompt and output tokens; 1 is off.
        logit_bias: token id -> added logit, clamped to [-100, 100].
        allowed_token_ids: only these tokens can be sampled.
        stop: a stop string or up to 16 of them; the text is cut before it.
        stop_token_ids: tokens that end the request.
        include_stop_str_in_output: cut the text after the stop string instead.
        min_tokens: no end token, stop token or stop string before that many output tokens.
        n: parallel samples, 1 to 16384; sample i uses seed + i.
        skip_special_tokens: leave special tokens out of the text (ids stay complete).
        detokenize: False: token ids only.
        priority: smaller = sooner.
        cache_mode: how this request uses computed beginnings of other prompts: "off", "exact" or "replay"; None: as the
            engine does.
        max_output_bytes: end with "length" after that many bytes of text.
        timeout_s: end with "timeout" after that many seconds.
        seed: alias of ``seq_seed``.
    """

    _FIELDS = (
        "temperature",
        "top_p",
        "top_k",
        "ignore_eos",
        "max_tokens",
        "logprobs",
        "prompt_logprobs",
        "top_logprobs",
        "first_n_token_no_eos",
        "eos_id",
        "so_args",
        "golden_token_ids",
        "seq_seed",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "allowed_token_ids",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "min_tokens",
        "n",
        "skip_special_tokens",
        "detokenize",
        "priority",
        "cache_mode",
        "max_output_bytes",
        "timeout_s",
    )
    _SHOWN = (
        "temperature",
        "top_p",
        "top_k",
        "ignore_eos",
        "max_tokens",
        "prompt_logprobs",
        "top_logprobs",
        "so_args",
        "seq_seed",
    )

    def __init__(
        self,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        ignore_eos: bool = False,
        max_tokens: int = 16,
        logprobs: bool = False,
        prompt_logprobs: bool = False,
        top_logprobs: int = 0,
        first_n_token_no_eos: int = 0,
        eos_id: int = 0,
        so_args: dict | None = None,
        golden_token_ids: list[int] | None = None,
        seq_seed: int | None = None,
        min_p: float = 0.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
        logit_bias: Mapping[int, float] | None = None,
        allowed_token_ids: list[int] | None = None,
        stop: str | list[str] | None = None,
        stop_token_ids: list[int] | None = None,
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
        n: int = 1,
        skip_special_tokens: bool = False,
        detokenize: bool = True,
        priority: int = 0,
        cache_mode: str | None = None,
        max_output_bytes: int | None = None,
        timeout_s: float | None = None,
        *,
        seed: int | None = None,
    ):
        if seed is not None:
            if seq_seed is not None:
                raise ValueError(f"seed is {seed!r} and seq_seed is {seq_seed!r}; give one of them")
            seq_seed = seed
        if cache_mode not in (None, "off", "exact", "replay"):
            raise ValueError(f"cache_mode is {cache_mode!r} but must be None, 'off', 'exact' or 'replay'")
        self.temperature = _number("temperature", temperature)
        self.top_p = _number("top_p", top_p)
        self.top_k = _integer_in_range("top_k", top_k, 64)
        self.ignore_eos = bool(ignore_eos)
        self.max_tokens = _integer_in_range("max_tokens", max_tokens, 64) or 1
        self.logprobs = bool(logprobs)
        self.prompt_logprobs = bool(prompt_logprobs)
        self.top_logprobs = _integer_in_range("top_logprobs", top_logprobs, 32)
        self.first_n_token_no_eos = _integer_in_range("first_n_token_no_eos", first_n_token_no_eos, 32)
        self.eos_id = _integer_in_range("eos_id", eos_id, 32)
        self.so_args = so_args
        self._so_args_json = None if so_args is None else _so_args_json(so_args)
        self.golden_token_ids = None if golden_token_ids is None else _ids("golden_token_ids", golden_token_ids)
        self.seq_seed = None if seq_seed is None else _integer("seq_seed", seq_seed) & _MASK64
        self.min_p = _number("min_p", min_p)
        self.presence_penalty = _number("presence_penalty", presence_penalty)
        self.frequency_penalty = _number("frequency_penalty", frequency_penalty)
        self.repetition_penalty = _number("repetition_penalty", repetition_penalty)
        self.logit_bias = (
            None
            if logit_bias is None
            else {_integer_in_range("logit_bias", key, 32): _number("logit_bias", value) for key, value in logit_bias.items()}
        )
        self.allowed_token_ids = None if allowed_token_ids is None else _ids("allowed_token_ids", allowed_token_ids)
        self.stop = [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
        for item in self.stop:
            if not isinstance(item, str):
                raise TypeError(f"stop must be a string or a list of strings, got {item!r}")
        self.stop_token_ids = [] if stop_token_ids is None else _ids("stop_token_ids", stop_token_ids)
        self.include_stop_str_in_output = bool(include_stop_str_in_output)
        self.min_tokens = _integer_in_range("min_tokens", min_tokens, 64)
        self.n = _integer_in_range("n", n, 32)
        self.skip_special_tokens = bool(skip_special_tokens)
        self.detokenize = bool(detokenize)
        self.priority = _integer_in_range("priority", priority, 32)
        self.cache_mode = cache_mode
        self.max_output_bytes = (
            None if max_output_bytes is None else _integer_in_range("max_output_bytes", max_output_bytes, 64)
        )
        self.timeout_s = None if timeout_s is None else _number("timeout_s", timeout_s)
        self._random_seed = secrets.randbits(64) or 1
        self._to_core().validate()
        if self.is_greedy:
            self.temperature, self.top_p, self.top_k, self.min_p = SAMPLING_EPS, 1.0, -1, 0.0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """From a dict: keys whose value is None are dropped, an unknown key raises ``TypeError``."""
        for key in values:
            if key not in cls._FIELDS and key != "seed":
                raise TypeError(f"unknown sampling parameter {key!r}")
        return cls(**{key: value for key, value in values.items() if value is not None})

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is always taken."""
        return self.temperature <= SAMPLING_EPS

    def _to_core(self, sample: int = 0) -> _core.SamplingParams:
        """The C++ form; ``sample`` is the index of one of ``n`` parallel samples."""
        core = _core.SamplingParams()
        for name in (
            "top_p",
            "top_k",
            "min_p",
            "ignore_eos",
            "max_tokens",
            "min_tokens",
            "logprobs",
            "prompt_logprobs",
            "top_logprobs",
            "first_n_token_no_eos",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "allowed_token_ids",
            "stop",
            "stop_token_ids",
            "include_stop_str_in_output",
            "skip_special_tokens",
            "detokenize",
            "n",
            "priority",
            "max_output_bytes",
            "timeout_s",
        ):
            setattr(core, name, getattr(self, name))
        if self._so_args_json is not None:
            core.set_so_args(self._so_args_json)
        core.temperature = 0.0 if 0 <= self.temperature <= SAMPLING_EPS else self.temperature
        core.cache_mode = self.cache_mode or ""
        core.golden_token_ids = self.golden_token_ids or []
        core.logit_bias = self.logit_bias or {}
        core.seq_seed = None if self.seq_seed is None else (self.seq_seed + sample) & _MASK64
        core.random_seed = (self._random_seed + sample) & _MASK64 or 1
        return core

    def __repr__(self) -> str:
        return f"SamplingParams({', '.join(f'{name}={getattr(self, name)!r}' for name in self._SHOWN)})"
