# SPDX-License-Identifier: Apache-2.0
"""What generation returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LOGPROB_FLOOR = -9999.0
"""Lowest log probability that is reported."""


@dataclass
class RequestOutput:
    """One output token of one request. Log probabilities are natural logarithms, at least -9999.

    Attributes:
        request_id: decimal counter over the life of the ``LLM``.
        prompt_len: prompt tokens.
        token_id: this token; -1 if the request ended without running.
        text: text that this token made certain (whole characters, possibly empty).
        finish_reason: "" unless this is the request's last output: stop, length, abort, timeout,
            prompt_length_exceeded, invalid_token.
        finished: whether this is the request's last output.
        token_logprobs: log probability of the token under the distribution it was drawn from; above 0: invalid.
        nextn_logprobs: the draft's log probability; 1.0: invalid.
        sum_smaller_probs: probability of the less likely tokens and this one; -1: not computed.
        top_token_ids, top_logprobs: the best tokens, best first; as many as ``top_logprobs`` asked for.
        num_output_tokens: 1-based index of this token in the output.
        prompt_logprobs: on the first output only, prompt_len - 1 values.
        stop_reason: the stop string or stop token id that ended the request, or None.
        cached_tokens: prompt tokens found in the prefix cache, on the first output.
        max_num_batched_tokens: tokens of a step of the engine.
        draft_tok, accept_tok: on the last token that a step emitted: rows verified and drafts accepted + 1.
        confidence_score: confidences of the drafts of that step, or None.
        sample: which of the ``n`` samples.
    """

    request_id: str
    prompt_len: int
    token_id: int = -1
    text: str = ""
    finish_reason: str = ""
    finished: bool = False
    token_logprobs: float = 1.0
    nextn_logprobs: float = 1.0
    sum_smaller_probs: float = -1.0
    top_token_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)
    num_output_tokens: int = 0
    prompt_logprobs: list[float] = field(default_factory=list)
    draft_tok: int = 1
    accept_tok: int = 1
    confidence_score: list[float] | None = None
    stop_reason: str | int | None = None
    cached_tokens: int = 0
    max_num_batched_tokens: int = 0
    sample: int = 0


def _request_output(request_id: str, prompt_len: int, token: Any, text: str, finish_reason: str) -> RequestOutput:
    output = RequestOutput(request_id, prompt_len, text=text, finish_reason=finish_reason, finished=finish_reason != "")
    if token is not None:
        output.token_id = token.token_id
        output.token_logprobs = token.logprob
        output.sum_smaller_probs = token.sum_smaller_probs
        output.top_token_ids = token.top_token_ids
        output.top_logprobs = token.top_logprobs
        output.num_output_tokens = token.num_output_tokens
    return output


class GenerationOutput(str):
    """The text of one request. It is a ``str``; the attributes tell the rest.

    Attributes:
        request_id: decimal counter over the life of the ``LLM``.
        prompt_token_ids, token_ids: ids of the prompt and of the output, the end token included.
        finish_reason: stop, length, abort, timeout, prompt_length_exceeded, invalid_token.
        stop_reason: the stop string or stop token id that ended the request, or None.
        logprobs: log probability of each output token.
        top_logprobs: per output token a list of (token id, log probability), best first.
        prompt_logprobs: prompt length - 1 values if asked for.
        usage: dict of prompt_tokens, cached_tokens, completion_tokens.
        timing: dict of load_s, ttft_s, total_s (seconds), tokens_per_s.
        seed: the seed that was used.
        samples: all ``n`` samples of the prompt; this one is the first.
    """

    request_id: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    finish_reason: str
    stop_reason: str | int | None
    logprobs: list[float]
    top_logprobs: list[list[tuple[int, float]]]
    prompt_logprobs: list[float]
    usage: dict[str, int]
    timing: dict[str, float]
    seed: int
    samples: list[GenerationOutput]

    @property
    def text(self) -> str:
        """The text as a plain ``str``."""
        return str(self)

    @classmethod
    def _from_core(cls, request_id: str, completion: Any) -> GenerationOutput:
        self = cls(completion.text)
        self.request_id = request_id
        self.prompt_token_ids = completion.prompt_ids
        self.token_ids = completion.ids
        self.finish_reason = completion.finish_reason
        self.stop_reason = completion.stop_string if completion.stop_string is not None else completion.stop_token_id
        tokens = completion.tokens
        self.logprobs = [token.logprob for token in tokens]
        self.top_logprobs = [list(zip(token.top_token_ids, token.top_logprobs)) for token in tokens]
        self.prompt_logprobs = completion.prompt_logprobs
        self.usage = completion.usage
        self.timing = completion.timing
        self.seed = completion.seed
        self.samples = [self]
        return self

    @classmethod
    def _not_run(cls, request_id: str, prompt_token_ids: list[int], finish_reason: str) -> GenerationOutput:
        self = cls("")
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.token_ids, self.logprobs, self.top_logprobs, self.prompt_logprobs = [], [], [], []
        self.finish_reason = finish_reason
        self.stop_reason = None
        self.usage = {"prompt_tokens": len(prompt_token_ids), "cached_tokens": 0, "completion_tokens": 0}
        self.timing = {"load_s": 0.0, "ttft_s": 0.0, "total_s": 0.0, "tokens_per_s": 0.0}
        self.seed = 0
        self.samples = [self]
        return self


@dataclass
class ChatDelta:
    """One piece of a streamed answer; unused fields are empty.

    Attributes:
        reasoning: more of the thinking.
        content: more of the answer.
        tool_call_index: >= 0: the next two fields belong to that tool call.
        tool_name: set when the call begins.
        tool_arguments: more of its JSON arguments.
    """

    reasoning: str = ""
    content: str = ""
    tool_call_index: int = -1
    tool_name: str = ""
    tool_arguments: str = ""


@dataclass
class ChatOutput:
    """An answer.

    Attributes:
        message: the assistant message as a dict, ready to be appended to the conversation.
        finish_reason: stop, length, tool_calls, abort, timeout.
        token_ids: ids of the whole output, thinking and marks included.
        usage, timing: as in ``GenerationOutput``.
    """

    message: dict[str, Any]
    finish_reason: str
    token_ids: list[int]
    usage: dict[str, int]
    timing: dict[str, float]

    @property
    def content(self) -> str:
        """Text of the answer."""
        return self.message["content"]

    @property
    def reasoning_content(self) -> str:
        """Text of the thinking, empty without it."""
        return self.message.get("reasoning_content", "")

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Tool calls in the form of Chat Completions: id, type, function {name, arguments}."""
        return self.message.get("tool_calls", [])

    def __str__(self) -> str:
        return self.content
