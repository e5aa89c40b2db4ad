# SPDX-License-Identifier: Apache-2.0
"""Continues prompts with the demo model, or with the checkpoint that DEEPINFER_HF_MODEL_DIR names.

python examples/offline_inference.py
"""

import os

from deepinfer import LLM, SamplingParams


def main() -> None:
    llm = LLM(os.environ.get("DEEPINFER_HF_MODEL_DIR") or "demo")

    # 1. Raw text: the model continues what it reads.
    prompts = ["The capital of France is", "The opposite of hot is"]
    params = SamplingParams(temperature=0, max_tokens=12, skip_special_tokens=True)
    for prompt, output in zip(prompts, llm.generate(prompts, params)):
        print(f"{prompt!r} -> {output!r} ({output.finish_reason})")

    # 2. Questions: the conversation is rendered the way the model was trained on.
    questions = ["What is the capital of France?", "What is the opposite of hot?", "Who are you?"]
    for question in questions:
        answer = llm.chat(
            [{"role": "user", "content": question}],
            SamplingParams(temperature=0, max_tokens=100),
            thinking=False,
        )
        print(f"{question!r} -> {answer.content!r}")

    # 3. Sampling with a seed: the same tokens on every machine.
    params = SamplingParams(temperature=1.0, top_p=0.95, seed=7, n=2, max_tokens=16, skip_special_tokens=True)
    for sample in llm.generate("Once upon a time", params)[0].samples:
        print(f"seed {sample.seed}: {sample!r}")

    # 4. Streaming: one output per token.
    print("stream:", end="", flush=True)
    for output in llm.stream("The chemical symbol of gold is", SamplingParams(temperature=0, max_tokens=8)):
        print(f" [{output.text}|{output.token_logprobs:.2f}]", end="", flush=True)
    print()
    llm.close()


if __name__ == "__main__":
    main()
