# SPDX-License-Identifier: Apache-2.0
"""LLMEngine: many requests at once, step by step. What a server builds on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import _core
from .engine_args import EngineArgs
from .outputs import RequestOutput, _request_output
from .sampling_params import SamplingParams

_log = logging.getLogger("deepinfer")

# How long a step waits at a time, so that signals are seen.
_POLL_S = 0.05


class EngineSequence:
    """A request in the engine.

    Attributes:
        user_id, request_id, sampling_params, prompt_token_ids, arrival_time, extra: as given.
        outputs: token ids of each sample so far.
        finish_reason: of the last sample that ended; "" before.
        first_token_time: when the first token came, or None.
    """

    def __init__(self, user_id: Any, request_id: str, params: SamplingParams, ids: list[int], arrival_time: float, extra: dict):
        self.user_id = user_id
        self.request_id = request_id
        self.sampling_params = params
        self.prompt_token_ids = ids
        self.arrival_time = arrival_time
        self.extra = extra
        self.outputs: list[list[int]] = [[] for _ in range(params.n)]
        self.finish_reason = ""
        self.first_token_time: float | None = None
        self._checkpoints: list[int] = []
        self._tag = -1  # -1: not queued
        self._num_open = params.n
        self._is_aborted = False

    @property
    def output_token_ids(self) -> list[int]:
        """Token ids of the first sample."""
        return self.outputs[0]

    @property
    def is_finished(self) -> bool:
        """Whether all samples have ended."""
        return self._num_open == 0

    def __len__(self) -> int:
        return len(self.prompt_token_ids) + sum(len(ids) for ids in self.outputs)


class LLMEngine:
    """Runs many requests together.

        engine = LLMEngine.from_engine_args(EngineArgs(model="demo"))
        engine.add_request("user", "0", SamplingParams(max_tokens=8), prompt_token_ids=ids)
        while engine.has_unfinished_requests():
            for output in engine.step():
                ...
        engine.close()

    The steps run in threads of their own; ``step`` hands over what they have produced. The methods of one engine must be
    called from one thread.
    """

    def __init__(self, args: EngineArgs):
        options = args._to_core()
        self._core: _core.Engine | None = _core.Engine(options)
        self._next_tag = 0
        self._open: dict[int, EngineSequence] = {}  # queued and not ended, by tag
        self._refused: list[RequestOutput] = []  # outputs of requests that could not run

    @classmethod
    def from_engine_args(cls, args: EngineArgs | Mapping[str, Any]) -> LLMEngine:
        """Loads the model and makes the caches."""
        return cls(args if isinstance(args, EngineArgs) else EngineArgs.from_dict(args))

    def add_request(
        self,
        user_id: Any,
        request_id: str,
        sampling_params: SamplingParams | Mapping[str, Any] | None,
        prompt_token_ids: Sequence[int],
        multi_modal_data: Mapping[str, Any] | None = None,
        arrival_time: float | None = None,
        extra: dict[str, Any] | None = None,
        enqueue: bool = True,
        chunk_checkpoints: Sequence[int] | None = None,
    ) -> EngineSequence | None:
        """Adds a request.

        Args:
            user_id: kept with the request; nothing depends on it.
            request_id: comes back with every output; unique among unfinished requests.
            sampling_params: an object, or a dict of its arguments (None values are dropped, unknown keys raise TypeError).
            prompt_token_ids: the prompt; not empty.
            multi_modal_data: images; not supported by this version. ``extra["multi_modal_data"]`` wins over it.
            arrival_time: seconds since the epoch, for the caller's statistics; the queue orders by the time of the call.
            extra: kept with the request; ``extra["cache_salt"]`` shares prompt beginnings with that salt only.
            enqueue: False builds the request without queueing it; ``enqueue_request`` does that later.
            chunk_checkpoints: ascending prompt lengths at which a prefill step has to end.

        Returns:
            The request, or None if it was dropped because of an id outside the vocabulary (a line in the log says so). A
            prompt that is too long gives one output with finish_reason "prompt_length_exceeded" at the next step.
        """
        core = self._loaded()
        extra = dict(extra or {})
        images = extra.get("multi_modal_data") or multi_modal_data
        if images and images.get("image_bytes"):
            raise NotImplementedError("images are not supported by this version; send text only")
        if sampling_params is None:
            sampling_params = SamplingParams()
        elif not isinstance(sampling_params, SamplingParams):
            sampling_params = SamplingParams.from_dict(sampling_params)
        ids = [int(token) for token in prompt_token_ids]
        if not ids:
            raise ValueError("the prompt is empty; give at least one token")
        if min(ids) < 0 or max(ids) >= core.vocab_size:
            _log.warning(
                "request %s is dropped: its ids are %d to %d but must be in [0, %d)", request_id, min(ids), max(ids), core.vocab_size
            )
            return None
        sampling_params._to_core().validate(core.vocab_size)
        arrival = time.time() if arrival_time is None else arrival_time
        sequence = EngineSequence(user_id, str(request_id), sampling_params, ids, arrival, extra)
        sequence._checkpoints = [int(length) for length in chunk_checkpoints or ()]
        if enqueue:
            self.enqueue_request(sequence)
        return sequence

    def enqueue_request(self, sequence: EngineSequence) -> None:
        """Queues a request that ``add_request`` built with ``enqueue=False``."""
        core = self._loaded()
        if sequence._tag >= 0 or sequence._is_aborted:
            raise ValueError(f"request {sequence.request_id} was queued or aborted before")
        if len(sequence.prompt_token_ids) > core.prompt_limit:
            self._refuse(sequence, "prompt_length_exceeded")
            return
        tag = self._next_tag
        core.submit(
            tag,
            sequence.prompt_token_ids,
            sequence.sampling_params._to_core(),
            str(sequence.extra.get("cache_salt") or ""),
            sequence._checkpoints,
        )
        self._next_tag += 1
        sequence._tag = tag
        self._open[tag] = sequence

    def abort_request(self, request_id: str | Iterable[str]) -> tuple[int, int]:
        """Ends requests: (how many were marked, the sum of their lengths). Finished and unknown ones are ignored.

        No tokens come any more; each sample gets one last output with finish_reason "abort".
        """
        ids = {request_id} if isinstance(request_id, str) else {str(item) for item in request_id}
        num_marked, total = 0, 0
        for tag, sequence in self._open.items():
            if sequence.request_id not in ids or sequence._is_aborted:
                continue
            sequence._is_aborted = True
            num_marked += 1
            total += len(sequence)
            self._loaded().cancel(tag)
        return num_marked, total

    def step(self) -> list[RequestOutput]:
        """Waits for outputs and returns those that are there, in the order they came. [] if nothing is unfinished."""
        core = self._loaded()
        outputs, self._refused = self._refused, []
        while not outputs and self._open:
            outputs = self._take(core.take_outputs(_POLL_S))
        return outputs

    def flush_inflight_reqs(self) -> list[RequestOutput]:
        """Outputs that are left when no request is unfinished. Never waits."""
        outputs, self._refused = self._refused, []
        return outputs + self._take(self._loaded().take_outputs(0.0))

    def has_unfinished_requests(self) -> bool:
        """Whether ``step`` has more to return."""
        return bool(self._open or self._refused)

    def get_num_unfinished_requests(self) -> int:
        """Requests queued and not ended."""
        return len(self._open) + len(self._refused)

    def get_num_pendings(self) -> int:
        """Sequences that wait for their first step."""
        return self._loaded().stats()["num_waiting"]

    def stats(self) -> dict[str, Any]:
        """Counters of the engine."""
        return self._loaded().stats()

    def health(self) -> dict[str, Any]:
        """``last_step_age_s``, and ``is_healthy``: False when there is work and no step for a minute."""
        stats = self._loaded().stats()
        return {name: stats[name] for name in ("is_healthy", "last_step_age_s")}

    @property
    def vocab_size(self) -> int:
        """Number of logits of the model."""
        return self._loaded().vocab_size

    @property
    def max_model_len(self) -> int:
        """Prompt and output tokens a request may have together."""
        return self._loaded().max_model_len

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self._loaded().encode(text)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Text of token ids."""
        return self._loaded().decode(list(token_ids), skip_special_tokens)

    def close(self) -> None:
        """Aborts what runs and frees the model. Safe to call more than once."""
        self._core = None
        self._open.clear()
        self._refused.clear()

    def __enter__(self) -> LLMEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _loaded(self) -> _core.Engine:
        if self._core is None:
            raise RuntimeError("the LLMEngine is closed")
        return self._core

    def _refuse(self, sequence: EngineSequence, reason: str) -> None:
        sequence._tag, sequence._num_open, sequence.finish_reason = self._next_tag, 0, reason
        self._next_tag += 1
        output = RequestOutput(sequence.request_id, len(sequence.prompt_token_ids), finish_reason=reason, finished=True)
        output.max_num_batched_tokens = self._loaded().max_num_batched_tokens
        self._refused.append(output)

    def _take(self, taken: list[_core.EngineOutput]) -> list[RequestOutput]:
        core = self._loaded()
        outputs = []
        for item in taken:
            sequence = self._open.get(item.tag)
            if sequence is None or (sequence._is_aborted and not item.finish_reason):
                continue
            token = None if sequence._is_aborted and item.finish_reason == "abort" else item.token
            output = _request_output(sequence.request_id, len(sequence.prompt_token_ids), token, item.text, item.finish_reason)
            output.max_num_batched_tokens = core.max_num_batched_tokens
            output.sample = item.sample
            output.cached_tokens = item.cached_tokens
            output.prompt_logprobs = item.prompt_logprobs
            if token is not None:
                sequence.outputs[item.sample].append(token.token_id)
                if sequence.first_token_time is None:
                    sequence.first_token_time = time.time()
            if item.finish_reason:
                output.stop_reason = item.stop_string if item.stop_string is not None else item.stop_token_id
                sequence.finish_reason = item.finish_reason
                sequence._num_open -= 1
                if sequence._num_open == 0:
                    del self._open[item.tag]
                    core.forget(item.tag)
            outputs.append(output)
        return outputs
