// SPDX-License-Identifier: Apache-2.0
//
// A backend without a model: plays recorded outputs. The request id chooses the script: "chat.stream-plain" the golden case
// chat/stream-plain; "endless" one token after another until it is cancelled; "silent" nothing; what AddCase was given; anything
// else a short answer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/json.h"
#include "server/backend.h"

namespace deepinfer::server {

class ScriptedBackend : public Backend {
 public:
  // `tokenizer` outlives the backend.
  ScriptedBackend(const text::Tokenizer& tokenizer, int64_t max_model_len);
  ~ScriptedBackend() override;

  // A case in the form of the golden *_stream.jsonl files; a piece may also be {"hex"}: bytes that need not be whole characters.
  void AddCase(const Json& one);
  // The last request as the engine would have got it: prompt, max_tokens and, if any, grammar.
  Json LastRequest();
  // What requests without a script of their own get from now on: one entry a step, the same step for all of them, `steps_per_s` of
  // them or, with 0, one after another without a pause. Before the first request.
  void PlaySteps(const std::vector<std::vector<int32_t>>& steps, double steps_per_s);

  // Returns when so many requests are running.
  void WaitForRunning(int64_t count);

  Result<std::shared_ptr<BackendHandle>> Submit(BackendRequest request, BackendCallback callback) override;
  const text::Tokenizer& tokenizer() const override { return tokenizer_; }
  int64_t max_model_len() const override { return max_model_len_; }
  // Scripts keep to no grammar; every one is fine.
  GrammarCheck grammar_check() const override {
    return [](const StructuredOutput&) { return Status::Ok(); };
  }
  BackendState State() override;

 private:
  struct Piece {
    std::vector<TokenOutput> tokens;
    std::string text;
    int64_t num_text_tokens = 0;
  };
  struct Script {
    std::vector<Piece> pieces;
    FinishReason finish = FinishReason::kStop;
    bool is_filtered = false;
    int64_t prompt_tokens = -1, cached_tokens = 0;
    int64_t num_repeats = 1;  // of the pieces; -1: until cancelled
    bool is_silent = false;
  };
  class Run;

  Script ParseCase(const Json& json) const;
  Json SeenRequest(const BackendRequest& request) const;
  void Loop();

  const text::Tokenizer& tokenizer_;
  const int64_t max_model_len_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<const Script>> scripts_;  // GUARDED_BY(mutex_)
  Json last_request_;                          // GUARDED_BY(mutex_)
  std::vector<std::shared_ptr<Run>> arrived_;  // GUARDED_BY(mutex_)
  int64_t num_running_ = 0;                    // GUARDED_BY(mutex_)
  bool is_stopping_ = false;                   // GUARDED_BY(mutex_)
  int64_t step_ns_ = -1;                       // GUARDED_BY(mutex_) of PlaySteps; -1: a pause that keeps no core busy
  std::thread thread_;
};

}  // namespace deepinfer::server
