# SPDX-License-Identifier: Apache-2.0
"""Lets the model call a function, runs it, and gives the result back. The demo model gets such calls right about half of the
time; a real checkpoint (DEEPINFER_HF_MODEL_DIR) does better.

    python examples/tool_call.py
"""

import json
import os

from deepinfer import LLM, SamplingParams

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Name of the city"}},
                "required": ["city"],
            },
        },
    }
]


def get_weather(city: str) -> dict:
    return {"city": city, "temperature_c": 21, "sky": "clear"}


def main() -> None:
    llm = LLM(os.environ.get("DEEPINFER_HF_MODEL_DIR") or "demo")
    params = SamplingParams(temperature=0, max_tokens=200)
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = llm.chat(messages, params, tools=TOOLS, thinking=False)
    print("finish reason:", answer.finish_reason)
    if not answer.tool_calls:
        print("answer:", answer.content)
        return
    messages.append(answer.message)
    for call in answer.tool_calls:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        print(f"call: {name}({arguments})")
        try:
            result = get_weather(**json.loads(arguments)) if name == "get_weather" else {"error": f"no function {name}"}
        except (TypeError, ValueError) as error:
            result = {"error": str(error)}
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
    print("answer:", llm.chat(messages, params, tools=TOOLS, thinking=False).content)
    llm.close()


if __name__ == "__main__":
    main()
