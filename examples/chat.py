# SPDX-License-Identifier: Apache-2.0
"""A conversation in the terminal with thinking shown before the answer. An empty line or Ctrl-D ends it.

python examples/chat.py            # asks you
python examples/chat.py "Hello"    # one question
"""

import os
import sys
from collections.abc import Iterator

from deepinfer import LLM, SamplingParams


def questions() -> Iterator[str]:
    if len(sys.argv) > 1:
        yield from sys.argv[1:]
        return
    while True:
        try:
            question = input("you> ").strip()
        except EOFError:
            return
        if not question:
            return
        yield question


def main() -> None:
    llm = LLM(os.environ.get("DEEPINFER_HF_MODEL_DIR") or "demo")
    messages: list[dict] = []
    for question in questions():
        messages.append({"role": "user", "content": question})
        stream = llm.chat(messages, SamplingParams(temperature=0, max_tokens=400), stream=True)
        is_thinking = False
        for delta in stream:
            if delta.reasoning:
                print("" if is_thinking else "(thinking) ", delta.reasoning, sep="", end="", flush=True)
                is_thinking = True
            if delta.content:
                print("\n" if is_thinking else "", delta.content, sep="", end="", flush=True)
                is_thinking = False
        print()
        messages.append(stream.output.message)
    llm.close()


if __name__ == "__main__":
    main()
