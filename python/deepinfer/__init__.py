# SPDX-License-Identifier: Apache-2.0
"""DeepInfer: inference for one model family, on a CPU by default.

    >>> from deepinfer import LLM, SamplingParams
    >>> llm = LLM("demo")
    >>> llm.chat([{"role": "user", "content": "What is the capital of France?"}]).content

``LLM`` loads a checkpoint and generates; ``SamplingParams`` says how tokens are chosen and when a request ends.
"""

from ._core import ModelError, ResourceError, __version__
from .engine import EngineSequence, LLMEngine
from .engine_args import EngineArgs
from .llm import LLM, Tokenizer
from .outputs import ChatDelta, ChatOutput, GenerationOutput, RequestOutput
from .sampling_params import SAMPLING_EPS, SamplingParams

__all__ = [
    "LLM",
    "LLMEngine",
    "SAMPLING_EPS",
    "ChatDelta",
    "ChatOutput",
    "EngineArgs",
    "EngineSequence",
    "GenerationOutput",
    "ModelError",
    "RequestOutput",
    "ResourceError",
    "SamplingParams",
    "Tokenizer",
    "__version__",
]
