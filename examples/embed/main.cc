// SPDX-License-Identifier: Apache-2.0
//
// A program with the engine inside: loads a model, answers one question, prints tokens as they come.
//
//   embed [MODEL] [QUESTION]
#include <cstdio>
#include <string>

#include "deepinfer/llm.h"

int main(int argc, char** argv) {
  deepinfer::EngineOptions options;
  if (argc > 1) options.model = argv[1];
  const std::string question = argc > 2 ? argv[2] : "What is the capital of France?";

  auto llm = deepinfer::LLM::Load(options);
  if (!llm.ok()) {
    std::fprintf(stderr, "error: %s\n", llm.status().message().c_str());
    return 1;
  }

  deepinfer::SamplingParams params = deepinfer::LLM::ChatDefaults();
  params.temperature = 0;
  const auto answer = (*llm)->Chat({{.role = "user", .content = question}},
                                   params,
                                   {.thinking = false},
                                   [](const deepinfer::ChatDelta& delta) {
                                     std::fwrite(delta.content.data(), 1, delta.content.size(), stdout);
                                     std::fflush(stdout);
                                     return deepinfer::StreamAction::kContinue;
                                   });
  if (!answer.ok()) {
    std::fprintf(stderr, "error: %s\n", answer.status().message().c_str());
    return 1;
  }
  const deepinfer::Completion& completion = answer->completion;
  std::printf("\n[%s, %lld tokens, %.0f tokens/s]\n",
              answer->finish_reason.c_str(),
              static_cast<long long>(completion.usage.completion_tokens),
              completion.timing.tokens_per_s);
  return 0;
}
