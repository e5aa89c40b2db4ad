// SPDX-License-Identifier: Apache-2.0
//
// Many requests at once: several threads submit questions to one engine, one reads its pieces as they come, one is
// cancelled, the others wait for their answers.
//
//   many [MODEL]
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "deepinfer/engine.h"

int main(int argc, char** argv) {
  deepinfer::EngineOptions options;
  if (argc > 1) options.model = argv[1];
  options.max_num_seqs = 16;
  options.disable_log_stats = true;
  auto started = deepinfer::Engine::Start(options);
  if (!started.ok()) {
    std::fprintf(stderr, "error: %s\n", started.status().message().c_str());
    return 1;
  }
  deepinfer::Engine& engine = **started;

  deepinfer::SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 6;

  // One thread each; a request does not notice the others.
  const std::vector<std::string> countries = {"France", "Spain", "Japan", "Italy"};
  std::vector<std::string> answers(countries.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < countries.size(); ++i) {
    threads.emplace_back([&, i] {
      auto request = engine.Submit("The capital of " + countries[i] + " is", params);
      answers[i] = request.ok() ? request->TakeCompletions().front().text : request.status().message();
    });
  }

  // Pieces as they come.
  auto streamed = engine.Submit("The capital of Germany is", params);
  if (!streamed.ok()) {
    std::fprintf(stderr, "error: %s\n", streamed.status().message().c_str());
    return 1;
  }
  std::printf("Germany:");
  deepinfer::Piece piece;
  while (streamed->Next(piece)) std::printf("%s", piece.text.c_str());
  std::printf("\n");

  // A client that goes away.
  deepinfer::SamplingParams endless = params;
  endless.max_tokens = 4000;
  endless.ignore_eos = true;
  auto cancelled = engine.Submit("Once upon a time", endless);
  if (cancelled.ok()) {
    cancelled->Next(piece);
    cancelled->Cancel();
    const deepinfer::Completion end = cancelled->TakeCompletions().front();
    std::printf("cancelled: %s\n", std::string(deepinfer::FinishReasonName(end.finish_reason)).c_str());
  }

  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < countries.size(); ++i) std::printf("%s:%s\n", countries[i].c_str(), answers[i].c_str());
  engine.Drain();
  const deepinfer::EngineStats stats = engine.Stats();
  std::printf("%lld finished, %lld aborted, %lld blocks in use\n",
              static_cast<long long>(stats.num_finished),
              static_cast<long long>(stats.num_aborted),
              static_cast<long long>(stats.num_used_blocks));
  return 0;
}
