# SPDX-License-Identifier: Apache-2.0
"""LLM: load a checkpoint, then generate from text, token ids or a conversation."""

from __future__ import annotations

import copy
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from . import _core
from .engine_args import EngineArgs
from .outputs import ChatDelta, ChatOutput, GenerationOutput, RequestOutput, _request_output
from .sampling_params import SamplingParams


class Tokenizer:
    """The model's tokenizer."""

    def __init__(self, core: _core.LLM):
        self._core = core

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens spelled in it are matched. Nothing is added in front."""
        return self._core.encode(text)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        return self._core.decode(list(token_ids), skip_special_tokens)

    @property
    def vocab_size(self) -> int:
        """Number of logits of the model."""
        return self._core.vocab_size

    @property
    def eos_token_id(self) -> int:
        """Id of the token that ends an answer."""
        return self._core.eos_token_id


class LLM:
    """A model that generates.

    Args:
        model: a directory, a hub id whose files are in the local cache, or "demo" (the model shipped with the package).
        tokenizer: must be None or ``model``; the checkpoint's own tokenizer is used.
        trust_remote_code: accepted and ignored; nothing from a checkpoint is ever executed.
        expert_parallel_size: must be 1.
        revision, tokenizer_revision: branch, tag or commit of a hub id.
        seed: accepted and ignored; weights and kernels use no random numbers.
        gpu_memory_utilization: share of the device memory to use, at most 1.
        decode_sequence: ``generate`` returns texts; False: lists of ``RequestOutput``, one per token.
        **kwargs: any argument of ``EngineArgs``, among them ``max_model_len`` (prompt and output tokens together; default
            4096, capped by the model), ``max_num_seqs`` (prompts of one call that run together), ``cache_mode``,
            ``decoder_replay``, ``device``, ``numerics``, ``num_threads``. Variables like ``DEEPINFER_MAX_NUM_SEQS`` set those
            that are not given.

    Raises:
        ModelError: the model or one of its files is missing, damaged or unsupported.
        ResourceError: not enough memory.
        ValueError, TypeError: a bad argument, named in the message.

    One call runs at a time; its prompts run together. Other threads wait; starting a second request from the thread that consumes a stream is
    an error.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "demo",
        tokenizer: str | None = None,
        trust_remote_code: bool = False,
        expert_parallel_size: int = 1,
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        seed: int = 0,
        gpu_memory_utilization: float = 0.9,
        decode_sequence: bool = True,
        **kwargs: Any,
    ):
        self._core: _core.LLM | None = None
        for name, value in (("stop_preempted_request", False), ("offline_inference", True), ("disable_log_stats", True)):
            if kwargs.get(name, value) not in (value, None):
                raise ValueError(f"{name} is {kwargs[name]!r} but must be {value!r} for LLM; LLMEngine takes it")
            kwargs[name] = value
        args = EngineArgs.from_dict(
            {
                "model": model,
                "tokenizer": tokenizer,
                "trust_remote_code": trust_remote_code,
                "expert_parallel_size": expert_parallel_size,
                "revision": revision,
                "tokenizer_revision": tokenizer_revision,
                "seed": seed,
                "gpu_memory_utilization": gpu_memory_utilization,
                **kwargs,
            },
            "LLM()",
        )
        options = args._to_core()
        self.decode_sequence = decode_sequence
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._next_request_id = 0
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._core = _core.LLM.load(options, None)
        self._max_num_batched_tokens = options.max_num_batched_tokens or max(
            self._core.max_model_len, 4096, options.max_num_seqs
        )

    # --- generation -------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: str | Sequence[str] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: bool = True,
        multi_modal_data: Any = None,
        callback: Callable[[RequestOutput], Any] | None = None,
        stream: bool = False,
    ) -> list[GenerationOutput] | list[list[RequestOutput]] | Iterator[RequestOutput]:
        """Continues prompts. Several prompts run together; each gets the answer that it gets alone.

        Args:
            prompts: one text or a list of texts.
            sampling_params: one object for all prompts, or a list with one per prompt. None: the defaults.
            prompt_token_ids: token ids used as they are, one list per prompt; wins over ``prompts``.
            use_tqdm: show a progress bar on a terminal if tqdm is installed and there are several prompts.
            multi_modal_data: images; not supported by this version.
            callback: called with a ``RequestOutput`` for each token; returning False ends that request. With several
                prompts the calls come from another thread, one at a time, prompts interleaved. What it raises ends the
                call.
            stream: return an iterator over the ``RequestOutput`` of all prompts as they come instead; its ``output``
                attribute holds the list at the end, closing it ends the requests.

        Returns:
            One ``GenerationOutput`` (a ``str`` with attributes) per prompt, in order; with ``decode_sequence=False`` one
            list of ``RequestOutput`` per prompt. A prompt that is too long or holds an unknown id gives an output with
            finish_reason "prompt_length_exceeded" or "invalid_token".
        """
        id_lists = self._prompt_ids(prompts, prompt_token_ids)
        self._refuse_images(multi_modal_data)
        params_list = self._params_list(sampling_params, len(id_lists))
        for ids in id_lists:
            if not ids:
                raise ValueError("the prompt is empty; give at least one token")
        for params in params_list:
            params._to_core().validate(self._loaded().vocab_size)
        if stream:
            if callback is not None:
                raise ValueError("give stream=True or a callback, not both")
            return self._run_stream(lambda emit, cancel: self._generate_all(id_lists, params_list, emit, False, cancel))
        with self._busy():
            return self._generate_all(id_lists, params_list, callback, use_tqdm)

    def _generate_all(
        self,
        id_lists: list[list[int]],
        params_list: list[SamplingParams],
        callback: Callable[[RequestOutput], Any] | None,
        use_tqdm: bool,
        cancel: _core.CancelToken | None = None,
    ) -> list[Any]:
        if not id_lists:
            return []
        if len(id_lists) == 1:
            return [self._generate_one(id_lists[0], params_list[0], callback, cancel)]
        return self._generate_batch(id_lists, params_list, callback, use_tqdm, cancel)

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
    ) -> Iterator[RequestOutput]:
        """Continues one prompt (text or token ids) and yields a ``RequestOutput`` as each token comes.

        Closing the iterator ends the request. The last output has ``finished`` set; text that was held back comes with it.
        """
        ids = self._prompt_ids(prompt, None)[0] if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise ValueError("the prompt is empty; give at least one token")
        params = copy.copy(sampling_params) if sampling_params is not None else SamplingParams()
        params._to_core().validate(self._loaded().vocab_size)
        return self._run_stream(lambda emit, cancel: self._generate_one(ids, params, emit, cancel))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        thinking: bool = True,
        effort: int = 75,
        stream: bool = False,
        callback: Callable[[ChatDelta], Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
    ) -> ChatOutput | Iterator[ChatDelta]:
        """Answers a conversation.

        Args:
            messages: dicts with role (system, user, assistant, tool) and content; assistant messages may have
                reasoning_content and tool_calls, tool messages have tool_call_id. ``ChatOutput.message`` fits in.
            sampling_params: None: temperature 1, top_p 0.95, max_tokens 1024.
            tools: Chat Completions tools: {"type": "function", "function": {"name", "description", "parameters"}}.
            tool_choice: None, "auto", "none", "required", or {"type": "function", "function": {"name": NAME}}; the last two
                hold the answer to calls and need ``thinking=False``.
            thinking: the model thinks before it answers.
            effort: 1..100, how thoroughly.
            stream: return an iterator of ``ChatDelta`` instead; its ``output`` attribute holds the ``ChatOutput`` at the end.
            callback: called with a ``ChatDelta`` for each piece; returning False ends the answer.
            response_format: of Chat Completions: {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name",
                "schema", "strict"}} or {"type": "regex", "regex": PATTERN}; holds the answer, not the thinking. So do
                ``so_args`` of the sampling parameters that have no trigger.
            parallel_tool_calls: False: at most one call.
        """
        core_messages = [_core_message(message) for message in messages]
        params = sampling_params if sampling_params is not None else SamplingParams(top_p=0.95, max_tokens=1024)
        core_params = params._to_core()
        core_params.validate(self._loaded().vocab_size)
        options = _core.ChatOptions()
        options.thinking = bool(thinking)
        if isinstance(effort, bool) or not isinstance(effort, int) or not 1 <= effort <= 100:
            raise ValueError(f"effort is {effort!r} but must be an integer in [1, 100]")
        options.effort = effort
        if tools:
            options.tools_json = json.dumps(list(tools), ensure_ascii=False)
        if isinstance(tool_choice, Mapping):
            function = tool_choice.get("function")
            if tool_choice.get("type") != "function" or not isinstance(function, Mapping) or not function.get("name"):
                raise ValueError(f"tool_choice is {tool_choice!r} but must name a function")
            options.tool_choice = str(function["name"])
        elif tool_choice is not None:
            if tool_choice not in ("auto", "none", "required"):
                raise ValueError(f"tool_choice is {tool_choice!r} but must be 'auto', 'none', 'required' or name a function")
            options.tool_choice = tool_choice
        options.parallel_tool_calls = bool(parallel_tool_calls)
        if response_format is not None:
            options.response_format_json = json.dumps(response_format, ensure_ascii=False)

        def run(emit: Callable[[ChatDelta], Any] | None, cancel: _core.CancelToken | None = None) -> ChatOutput:
            on_delta = None if emit is None else lambda *fields: emit(ChatDelta(*fields))
            return _chat_output(self._loaded().chat(core_messages, core_params, options, on_delta, cancel))

        if stream:
            if callback is not None:
                raise ValueError("give stream=True or a callback, not both")
            # A conversation that cannot be rendered is refused here, not at the first piece.
            self._loaded().encode_chat(core_messages, options)
            return self._run_stream(run)
        with self._busy():
            return run(callback)

    # --- the rest ---------------------------------------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return Tokenizer(self._loaded())

    @property
    def max_model_len(self) -> int:
        """Prompt and output tokens a request may have together."""
        return self._loaded().max_model_len

    @property
    def load_s(self) -> float:
        """Seconds that loading took."""
        return self._loaded().load_s

    def close(self) -> None:
        """Frees the model. Safe to call more than once."""
        if self._core is None:
            return
        with self._busy():
            self._core = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _loaded(self) -> _core.LLM:
        if self._core is None:
            raise RuntimeError("the LLM is closed")
        return self._core

    @contextmanager
    def _busy(self) -> Iterator[None]:
        me = threading.get_ident()
        if self._owner == me:
            raise RuntimeError("a stream of this LLM is still open in this thread; finish or close it first")
        with self._lock:
            self._owner = me
            try:
                yield
            finally:
                self._owner = None

    def _prompt_ids(self, prompts: Any, prompt_token_ids: Any) -> list[list[int]]:
        if prompts is None and prompt_token_ids is None:
            raise ValueError("give prompts or prompt_token_ids")
        if isinstance(prompts, str):
            prompts = [prompts]
        if prompt_token_ids is not None and len(prompt_token_ids) > 0 and isinstance(prompt_token_ids[0], int):
            prompt_token_ids = [prompt_token_ids]
        if prompts is not None and prompt_token_ids is not None and len(prompts) != len(prompt_token_ids):
            raise ValueError(f"there are {len(prompts)} prompts but {len(prompt_token_ids)} lists of prompt_token_ids")
        if prompt_token_ids is not None:
            return [_int_list(ids) for ids in prompt_token_ids]
        core = self._loaded()
        for prompt in prompts:
            if not isinstance(prompt, str):
                raise TypeError(f"a prompt must be a string, got {type(prompt).__name__}; token ids go to prompt_token_ids")
        return [core.encode(prompt) for prompt in prompts]

    @staticmethod
    def _refuse_images(multi_modal_data: Any) -> None:
        items = multi_modal_data if isinstance(multi_modal_data, (list, tuple)) else [multi_modal_data]
        for item in items:
            if item and item.get("image_bytes"):
                raise NotImplementedError("images are not supported by this version; send text only")

    @staticmethod
    def _params_list(sampling_params: Any, count: int) -> list[SamplingParams]:
        if sampling_params is None:
            sampling_params = SamplingParams()
        if isinstance(sampling_params, SamplingParams):
            return [copy.copy(sampling_params) for _ in range(count)]
        params = list(sampling_params)
        if len(params) != count:
            raise ValueError(f"there are {count} prompts but {len(params)} sampling_params")
        return params

    def _generate_one(
        self,
        ids: list[int],
        params: SamplingParams,
        callback: Callable[[RequestOutput], Any] | None = None,
        cancel: _core.CancelToken | None = None,
    ) -> Any:
        core = self._loaded()
        request_id = str(self._next_request_id)
        self._next_request_id += 1
        reason = ""
        if any(not 0 <= token < core.vocab_size for token in ids):
            reason = "invalid_token"
        elif len(ids) > core.max_model_len:
            reason = "prompt_length_exceeded"
        if reason:
            output = RequestOutput(request_id, len(ids), finish_reason=reason, finished=True)
            if callback is not None:
                callback(output)
            return GenerationOutput._not_run(request_id, ids, reason) if self.decode_sequence else [output]
        samples: list[Any] = []
        for sample in range(params.n):
            outputs: list[RequestOutput] = []

            def on_token(token: Any, text: str, finish_reason: str) -> Any:
                output = _request_output(request_id, len(ids), token, text, finish_reason)  # noqa: B023
                output.max_num_batched_tokens = self._max_num_batched_tokens
                output.sample = sample  # noqa: B023
                if not self.decode_sequence:
                    outputs.append(output)  # noqa: B023
                return callback(output) if callback is not None else None

            wants_tokens = callback is not None or not self.decode_sequence
            completion = core.generate(ids, params._to_core(sample), on_token if wants_tokens else None, cancel)
            if self.decode_sequence:
                samples.append(GenerationOutput._from_core(request_id, completion))
            else:
                if outputs:
                    outputs[0].prompt_logprobs = completion.prompt_logprobs
                    outputs[0].cached_tokens = completion.usage["cached_tokens"]
                    outputs[-1].stop_reason = (
                        completion.stop_string if completion.stop_string is not None else completion.stop_token_id
                    )
                samples.append(outputs)
        if not self.decode_sequence:
            return [output for outputs in samples for output in outputs]
        samples[0].samples = samples
        return samples[0]

    def _generate_batch(
        self,
        id_lists: list[list[int]],
        params_list: list[SamplingParams],
        callback: Callable[[RequestOutput], Any] | None,
        use_tqdm: bool,
        cancel: _core.CancelToken | None = None,
    ) -> list[Any]:
        core = self._loaded()
        first_id = self._next_request_id
        self._next_request_id += len(id_lists)
        # Of each prompt and sample, if wanted.
        outputs: list[list[list[RequestOutput]]] = [[[] for _ in range(params.n)] for params in params_list]

        def on_token(prompt: int, sample: int, token: Any, text: str, finish_reason: str) -> Any:
            output = _request_output(str(first_id + prompt), len(id_lists[prompt]), token, text, finish_reason)
            output.max_num_batched_tokens = self._max_num_batched_tokens
            output.sample = sample
            if not self.decode_sequence:
                outputs[prompt][sample].append(output)
            return callback(output) if callback is not None else None

        wants_tokens = callback is not None or not self.decode_sequence
        with _progress_bar(len(id_lists), use_tqdm) as progress:
            completions = core.generate_batch(
                id_lists, [params._to_core() for params in params_list], on_token if wants_tokens else None, progress, cancel
            )
        results: list[Any] = []
        for prompt, (ids, samples) in enumerate(zip(id_lists, completions)):
            request_id = str(first_id + prompt)
            reason = samples[0].finish_reason
            if reason in ("invalid_token", "prompt_length_exceeded"):
                not_run = RequestOutput(request_id, len(ids), finish_reason=reason, finished=True)
                results.append(GenerationOutput._not_run(request_id, ids, reason) if self.decode_sequence else [not_run])
            elif self.decode_sequence:
                texts = [GenerationOutput._from_core(request_id, sample) for sample in samples]
                texts[0].samples = texts
                results.append(texts[0])
            else:
                for tokens, sample in zip(outputs[prompt], samples):
                    if tokens:
                        tokens[0].prompt_logprobs = sample.prompt_logprobs
                        tokens[0].cached_tokens = sample.usage["cached_tokens"]
                        tokens[-1].stop_reason = (
                            sample.stop_string if sample.stop_string is not None else sample.stop_token_id
                        )
                results.append([output for tokens in outputs[prompt] for output in tokens])
        return results

    def _run_stream(self, run: Callable[..., Any]) -> _Stream:
        return _Stream(self, run)


class _Stream:
    """Runs a request in a worker thread and hands over its pieces. The request starts with the first piece asked for."""

    def __init__(self, llm: LLM, run: Callable[..., Any]):
        self._llm = llm
        self._run = run
        self._pieces: Iterator[Any] = self._iterate()
        self.output: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._pieces)

    def close(self) -> None:
        """Ends the request."""
        self._pieces.close()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _iterate(self) -> Iterator[Any]:
        cancel = _core.CancelToken()
        pieces: queue.SimpleQueue = queue.SimpleQueue()

        def work() -> None:
            try:
                pieces.put(("end", self._run(lambda piece: pieces.put(("piece", piece)), cancel)))
            except BaseException as error:  # handed over to the consumer
                pieces.put(("error", error))

        with self._llm._busy():
            worker = threading.Thread(target=work, name="deepinfer-stream", daemon=True)
            worker.start()
            try:
                while True:
                    kind, value = pieces.get()
                    if kind == "piece":
                        yield value
                    elif kind == "error":
                        raise value
                    else:
                        self.output = value
                        return
            finally:
                cancel.cancel()
                worker.join()


def _int_list(ids: Iterable[int]) -> list[int]:
    result = []
    for token in ids:
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise TypeError(f"a token id must be an integer, got {token!r}")
        number = int(token)
        # Ids beyond 32 bits cannot reach the engine; they are unknown ids all the same.
        result.append(number if -(1 << 31) <= number < 1 << 31 else -1)
    return result


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        parts = []
        for part in value:
            if not isinstance(part, Mapping) or part.get("type") != "text":
                raise NotImplementedError(f"{where} holds a part that is no text; images are not supported by this version")
            parts.append(part.get("text", ""))
        return "\n\n".join(parts)
    raise TypeError(f"{where} must be a string or a list of parts, got {value!r}")


def _core_message(message: Mapping[str, Any]) -> _core.ChatMessage:
    if not isinstance(message, Mapping):
        raise TypeError(f"a message must be a dict with role and content, got {message!r}")
    if "role" not in message:
        raise ValueError(f"a message needs a role, got keys {sorted(message)}")
    core = _core.ChatMessage()
    core.role = message["role"]
    core.content = _text(message.get("content"), "content")
    core.reasoning_content = message.get("reasoning_content") or ""
    core.tool_call_id = message.get("tool_call_id") or ""
    calls = []
    for call in message.get("tool_calls") or []:
        core_call = _core.ToolCall()
        core_call.id = call["id"]
        core_call.name = call["function"]["name"]
        core_call.arguments = call["function"]["arguments"]
        calls.append(core_call)
    core.tool_calls = calls
    return core


def _chat_output(answer: _core.ChatCompletion) -> ChatOutput:
    message: dict[str, Any] = {"role": "assistant", "content": answer.message.content}
    if answer.message.reasoning_content:
        message["reasoning_content"] = answer.message.reasoning_content
    if answer.message.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.message.tool_calls
        ]
    completion = answer.completion
    return ChatOutput(message, answer.finish_reason, completion.ids, completion.usage, completion.timing)


@contextmanager
def _progress_bar(total: int, use_tqdm: bool) -> Iterator[Callable[[int], Any] | None]:
    """A function that takes the number of prompts done, or None where no bar is shown."""
    if not use_tqdm or not sys.stderr.isatty():
        yield None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield None
        return
    with tqdm(total=total, desc="prompts") as bar:
        yield lambda done: bar.update(done - bar.n)
