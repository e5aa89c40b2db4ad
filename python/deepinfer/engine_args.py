# SPDX-License-Identifier: Apache-2.0
"""EngineArgs: which model, on what, and how many requests share it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from . import _core

# Arguments that this version accepts with these values only: what it does anyway.
_FIXED: dict[str, tuple[Any, ...]] = {
    "data_parallel_size": (0, 1),
    "context_parallel_size": (1,),
    "expert_parallel_size": (1,),
    "engram_parallel_size": (0, 1),
    "engine_rank": (0,),
    "engine_group_rank": (0,),
    "tokens_per_block": (-1, 128),
}
_INT_RANGES: dict[str, tuple[int, int]] = {
    "max_model_len": (1, 2**31 - 1),
    "max_num_batched_tokens": (128, 2**31 - 1),
    "max_num_seqs": (1, 8192),
    "num_drafts": (-1, 42),
    "decode_perf_cache_ttl_sec": (0, 2**31 - 1),
    "lookahead_tokens": (0, 2**31 - 1),
    "num_threads": (0, 4096),
    "num_kv_blocks": (0, 2**31 - 1),
    "max_decode_gap_ms": (0, 2**31 - 1),
    "decode_steps_per_prefill": (0, 2**31 - 1),
    "prefill_attempt_interval": (1, 2**31 - 1),
    "prefill_any_attempt_interval": (1, 2**31 - 1),
    "prefill_max_sum_seqlen_k": (1, 2**30),
    "max_queued_requests": (1, 2**40),
    "kv_state_every_blocks": (1, 2**31 - 1),
    "kv_replay_tokens": (0, 2**31 - 1),
    "decoder_replay_keep": (0, 2**31 - 1),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "load_format": ("auto", "dummy"),
    "logprobs_mode": ("processed", "raw"),
    "cache_mode": ("replay", "exact", "off"),
    "decoder_replay": ("auto", "off", "mask", "compact"),
    "spec_verify": ("reject", "exact"),
}
_TEXTS = ("device", "numerics", "cpu_isa", "cpu_pinning", "cuda_plugin", "memory_budget", "expert_io", "pack_cache", "engram_io", "cache_salt", "decode_token_blacklist", "confidence_temperature", "decode_perf_cache_dir")
_BOOLS = (
    "chunked_prefill",
    "stop_preempted_request",
    "zero_overhead_scheduling",
    "kv_persist_swa",
    "batch_invariant",
    "deterministic",
    "varlen_verify",
    "prompt_lookup",
    "compute_sum_smaller_probs",
    "disable_log_stats",
)
_FLOATS = {"gpu_memory_utilization": (0.0, 1.0), "num_state_slots_ratio": (1.0, 16.0)}


@dataclass
class EngineArgs:
    """The engine's arguments. None takes the default, or what the environment says (``DEEPINFER_MAX_NUM_SEQS`` and so on).

    Args:
        model: a directory, a hub id whose files are in the local cache, or "demo".
        tokenizer: None or the model; the checkpoint's own tokenizer is used.
        trust_remote_code, served_model_name, seed, ignore_len, offline_inference: accepted; they change nothing here.
        revision, tokenizer_revision: branch, tag or commit of a hub id.
        load_format: "auto", or "dummy" for random weights.
        max_model_len: prompt and output tokens together; 4096, capped by the model.
        data_parallel_size, context_parallel_size, expert_parallel_size, engram_parallel_size, engine_rank,
            engine_group_rank, tokens_per_block: this version runs on one device with blocks of 128 tokens.
        gpu_memory_utilization: share of the memory for weights and caches, at most 1.
        max_num_batched_tokens: tokens of a step; the largest of max_model_len, 4096 and max_num_seqs.
        max_num_seqs: requests that run together; 256, fewer where memory is short.
        disable_log_stats: no statistics lines.
        stop_preempted_request: a request that lost its cache memory ends ("insufficient_system_resource"); False computes it
            again. True here, False for ``LLM``.
        chunked_prefill: long prompts take several steps; without it max_num_batched_tokens must reach max_model_len.
        lookahead_tokens: smallest part of a prompt that shares a step.
        device, cuda_plugin, numerics, cpu_isa, cpu_pinning, num_threads, engram_io, memory_budget, expert_io, pack_cache: where and in which arithmetic the model runs.
        logprobs_mode: "processed" (of what is sampled from) or "raw".
        compute_sum_smaller_probs: fill ``RequestOutput.sum_smaller_probs``.
        decode_token_blacklist: ids never generated, "3,7-9".
        decoder_replay, decoder_replay_keep: run the second half of the model on the end of a prompt only.
        cache_mode: "replay", "exact" or "off" (the default): share computed beginnings of prompts.
        cache_salt: share them among requests of the same salt only.
        kv_state_every_blocks, kv_persist_swa, kv_replay_tokens: details of the two modes.
        batch_invariant, deterministic: no approximate cache hits.
        num_drafts: drafts verified per step; 0 (the default) = none, -1 = what the draft head was trained for.
        varlen_verify: as many of them as pay, by confidence and measured cost.
        prompt_lookup: also draft what followed the newest tokens where they stood before.
        spec_verify: of requests without a seed: "reject" keeps the distribution, "exact" every token.
        confidence_temperature: of the draft head, "1.0" or one number per draft.
        decode_perf_cache_dir, decode_perf_cache_ttl_sec: where the measured cost of steps is kept, and how long.
        num_kv_blocks, num_state_slots_ratio: sizes of the caches.
        zero_overhead_scheduling: plan a step while the one before runs.
        max_decode_gap_ms, decode_steps_per_prefill, prefill_attempt_interval, prefill_any_attempt_interval,
            prefill_max_sum_seqlen_k: how prefill and decode steps alternate.
        max_queued_requests: more are refused with ``ResourceError``.
    """

    model: str | os.PathLike[str] = "demo"
    tokenizer: str | os.PathLike[str] | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    tokenizer_revision: str | None = None
    served_model_name: str = "deepinfer-model"
    load_format: str | None = None
    seed: int = 0
    max_model_len: int | None = None
    data_parallel_size: int = 0
    context_parallel_size: int = 1
    expert_parallel_size: int = 1
    engram_parallel_size: int = 0
    engine_rank: int = 0
    engine_group_rank: int = 0
    gpu_memory_utilization: float | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    disable_log_stats: bool = False
    stop_preempted_request: bool | None = None
    chunked_prefill: bool | None = None
    ignore_len: int = 128 << 20
    tokens_per_block: int = -1
    lookahead_tokens: int | None = None
    offline_inference: bool = False
    device: str | None = None
    numerics: str | None = None
    cpu_isa: str | None = None
    cpu_pinning: str | None = None
    cuda_plugin: str | None = None
    memory_budget: str | None = None
    expert_io: str | None = None
    pack_cache: str | None = None
    engram_io: str | None = None
    num_threads: int | None = None
    logprobs_mode: str | None = None
    compute_sum_smaller_probs: bool | None = None
    decode_token_blacklist: str | None = None
    decoder_replay: str | None = None
    decoder_replay_keep: int | None = None
    cache_mode: str | None = None
    cache_salt: str | None = None
    kv_state_every_blocks: int | None = None
    kv_persist_swa: bool | None = None
    kv_replay_tokens: int | None = None
    batch_invariant: bool | None = None
    deterministic: bool | None = None
    num_drafts: int | None = None
    varlen_verify: bool | None = None
    prompt_lookup: bool | None = None
    spec_verify: str | None = None
    confidence_temperature: str | None = None
    decode_perf_cache_dir: str | None = None
    decode_perf_cache_ttl_sec: int | None = None
    num_kv_blocks: int | None = None
    num_state_slots_ratio: float | None = None
    zero_overhead_scheduling: bool | None = None
    max_decode_gap_ms: int | None = None
    decode_steps_per_prefill: int | None = None
    prefill_attempt_interval: int | None = None
    prefill_any_attempt_interval: int | None = None
    prefill_max_sum_seqlen_k: int | None = None
    max_queued_requests: int | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], what: str = "EngineArgs()") -> EngineArgs:
        """From keyword arguments; an unknown one raises ``TypeError`` naming it."""
        known = {item.name for item in fields(cls)}
        for key in values:
            if key not in known:
                raise TypeError(f"{what} got an unknown argument {key!r}")
        return cls(**values)

    def _to_core(self) -> _core.EngineOptions:
        """Checks everything and gives the C++ form, the environment applied to what is None."""
        model = os.fspath(self.model)
        if self.tokenizer is not None and os.fspath(self.tokenizer) != model:
            raise ValueError(f"tokenizer is {self.tokenizer!r} but must be the model {model!r}")
        if self.tokenizer_revision is not None and self.tokenizer_revision != self.revision:
            raise ValueError(f"tokenizer_revision is {self.tokenizer_revision!r} but must equal revision {self.revision!r}")
        for name, allowed in _FIXED.items():
            if getattr(self, name) not in allowed:
                values = " or ".join(repr(item) for item in allowed)
                raise ValueError(f"{name} is {getattr(self, name)!r} but must be {values}: this version runs on one device")
        given: dict[str, Any] = {}
        for name, (low, high) in _INT_RANGES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name} is {value!r} but must be an integer in [{low}, {high}]")
            given[name] = value
        for name, (low, high) in _FLOATS.items():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} must be a number, got {value!r}")
            if not low <= value <= high or value == 0:
                raise ValueError(f"{name} is {value!r} but must be {'above 0 and at most 1' if low == 0 else f'in [{low}, {high}]'}")
            given[name] = float(value)
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a string, got {value!r}")
            if value not in choices:
                raise ValueError(f"{name} is {value!r} but must be one of {', '.join(choices)}")
            given[name] = value
        for name in _TEXTS:
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a string, got {value!r}")
            given[name] = value
        for name in _BOOLS:
            if getattr(self, name) is not None:
                given[name] = bool(getattr(self, name))
        options = _core.EngineOptions.from_environment()
        options.model = model
        if self.revision is not None:
            options.revision = self.revision
        if "logprobs_mode" in given:
            options.raw_logprobs = given.pop("logprobs_mode") == "raw"
        for name, value in given.items():
            setattr(options, name, value)
        if "max_num_batched_tokens" in given:
            options.prefill_chunk_tokens = min(given["max_num_batched_tokens"], options.prefill_chunk_tokens)
        return options
