// SPDX-License-Identifier: Apache-2.0
//
// What the protocols cost: tokens per second of one thread from token ids to response bytes over 256 streams (detokenizer,
// output parser, JSON writer; a recorded answer with thinking and a tool call), and the time from a request body to a prompt.
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "protocols/convert_request.h"
#include "protocols/protocol_stream.h"
#include "tests/e2e/recorded_answer.h"
#include "text/tokenizer.h"

namespace deepinfer::protocols {
namespace {

constexpr size_t kNumStreams = 256;

const text::Tokenizer& Tokenizer() {
  static const std::unique_ptr<text::Tokenizer> tokenizer =
      text::Tokenizer::Load(std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/tokenizer").value();
  return *tokenizer;
}

std::string Body(Api api) {
  switch (api) {
    case Api::kResponses:
      return R"({"model":"deepseek-flash","input":"Weather in Paris?","stream":true,"tools":[{"type":"function","name":"weather"}]})";
    case Api::kMessages:
      return R"({"model":"deepseek-flash","max_tokens":9999,"messages":[{"role":"user","content":"Weather in Paris?"}],"stream":true,)"
             R"("tools":[{"name":"weather","input_schema":{"type":"object"}}]})";
    case Api::kChat: break;
  }
  return R"({"model":"deepseek-flash","messages":[{"role":"user","content":"Weather in Paris?"}],"stream":true,)"
         R"("stream_options":{"include_usage":true},"tools":[{"type":"function","function":{"name":"weather"}}]})";
}

void BM_Stream(benchmark::State& state) {
  const Api api = static_cast<Api>(state.range(0));
  const ConvertedRequest request = ConvertRequest(api, Body(api), {}).value();
  const std::vector<int32_t> answer = RecordedAnswer(Tokenizer());
  struct Stream {
    std::unique_ptr<ProtocolStream> stream;
    size_t position = 0;
    std::string out;
  };
  std::vector<Stream> streams(kNumStreams);
  int64_t num_bytes = 0;
  const auto restart = [&](Stream& s) {
    s.stream = std::make_unique<ProtocolStream>(request, &Tokenizer(), MakeResponseSetup(request, "resp_0123456789abcdef", 1), 1);
    s.stream->Start(100, 40, s.out);
    s.position = 0;
  };
  for (size_t i = 0; i < kNumStreams; ++i) {
    restart(streams[i]);
    // The streams are in different places of the answer, as they would be.
    for (size_t k = 0; k < i * answer.size() / kNumStreams; ++k) {
      streams[i].out.clear();
      streams[i].stream->PushTokens(std::span(&answer[streams[i].position++], 1), {}, streams[i].out);
    }
  }
  for (auto _ : state) {
    for (Stream& s : streams) {
      s.out.clear();
      s.stream->PushTokens(std::span(&answer[s.position], 1), {}, s.out);
      if (++s.position == answer.size()) {
        s.stream->Finish(EngineFinish::kStop, 1, s.out);
        restart(s);
      }
      num_bytes += static_cast<int64_t>(s.out.size());
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kNumStreams));
  state.SetBytesProcessed(num_bytes);
  state.SetLabel(std::string(ApiName(api)) + ", " + std::to_string(answer.size()) + " tokens an answer");
}
BENCHMARK(BM_Stream)->Arg(static_cast<int>(Api::kChat))->Arg(static_cast<int>(Api::kMessages))->Arg(static_cast<int>(Api::kResponses));

// range(1): kilobytes of history.
void BM_Convert(benchmark::State& state) {
  const Api api = static_cast<Api>(state.range(0));
  std::string body = Body(api);
  const std::string content = "Weather in Paris?";
  std::string history;
  while (history.size() < static_cast<size_t>(state.range(1)) << 10) history += "some words of an earlier turn, ";
  body.replace(body.find(content), content.size(), history);
  for (auto _ : state) {
    Result<ConvertedRequest> request = ConvertRequest(api, body, {});
    benchmark::DoNotOptimize(request->prompt.text.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(body.size()));
  state.SetLabel(std::string(ApiName(api)) + ", without tokenizer");
}
BENCHMARK(BM_Convert)->ArgsProduct({{static_cast<int>(Api::kChat), static_cast<int>(Api::kMessages), static_cast<int>(Api::kResponses)}, {0, 256}});

}  // namespace
}  // namespace deepinfer::protocols

BENCHMARK_MAIN();
