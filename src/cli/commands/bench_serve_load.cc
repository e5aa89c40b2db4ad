// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_serve_load.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "core/clock.h"
#include "core/escape.h"
#include "core/json.h"
#include "core/signals.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kNsPerMs = 1'000'000, kNsPerS = 1'000'000'000;
constexpr int64_t kTickNs = 100 * kNsPerMs;
// For requests that run when the duration is over, and for the server to forget the last ones.
constexpr int64_t kGraceNs = 60 * kNsPerS, kSettleNs = 10 * kNsPerS;
constexpr int64_t kIdleAtOnce = 64;
constexpr int64_t kIdleOutputTokens = 8;
constexpr size_t kMaxErrors = 8;

int64_t Now() { return Clock::Steady().NowNs(); }

// Words of one token each in usual vocabularies.
constexpr std::string_view kWords[] = {"time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
                                       "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company",
                                       "system", "program", "question", "work", "government", "number", "night", "point", "home", "water", "room",
                                       "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word",
                                       "business", "issue", "side", "kind", "head", "house", "service", "friend", "father", "power", "hour", "game",
                                       "line", "end", "member", "law"};

// The same numbers with every library.
class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  double Uniform() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }
  uint64_t Below(uint64_t n) { return bits_() % n; }
  double Exponential(double rate) { return -std::log(1 - Uniform()) / rate; }

 private:
  std::mt19937_64 bits_;
};

std::string Head(const ServerLoad& load, std::string_view method, std::string_view path, size_t body_bytes) {
  std::string head = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\n", method, load.address.prefix, path,
                                 load.address.host.find(':') == std::string::npos ? load.address.host : "[" + load.address.host + "]", load.address.port);
  if (method == "POST") head += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body_bytes);
  if (!load.api_key.empty()) head += fmt::format("Authorization: Bearer {}\r\n", load.api_key);
  return head + "\r\n";
}

std::string Text(Random& random, int64_t num_words) {
  std::string text;
  for (int64_t i = 0; i < num_words; ++i) {
    if (i > 0) text += ' ';
    text += kWords[random.Below(std::size(kWords))];
  }
  return text;
}

std::shared_ptr<const std::string> Get(const ServerLoad& load, std::string_view path) {
  return std::make_shared<const std::string>(Head(load, "GET", path, 0));
}

// Runs the client until one answer has come.
Result<LoadOutcome> Ask(LoadClient& client, LoadRequest request) {
  std::optional<LoadOutcome> outcome;
  client.Send(std::move(request), [&](LoadOutcome&& done) {
    outcome = std::move(done);
    client.Stop();
  });
  const auto is_over = std::make_shared<bool>(false);
  client.At(Now() + kGraceNs, [&client, is_over] {
    if (!*is_over) client.Stop();
  });
  client.Run();
  *is_over = true;
  if (!outcome) return Unavailable("the server has not answered within a minute");
  return *std::move(outcome);
}

ServerState ParseMetrics(const std::string& text) {
  ServerState state;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    const size_t blank = line.rfind(' ');
    if (line.empty() || line[0] == '#' || blank == std::string_view::npos) continue;
    double value = 0;
    std::from_chars(line.data() + blank + 1, line.data() + line.size(), value);
    state.metrics[std::string(line.substr(0, std::min(line.find_first_of("{ "), blank)))] += value;
  }
  return state;
}

// A server of another make may have no metrics: they are empty then.
ServerState ReadState(LoadClient& client, const ServerLoad& load) {
  const Result<LoadOutcome> outcome = Ask(client, {.bytes = Get(load, "/metrics"), .api = load.api});
  return outcome.ok() && outcome->is_ok() ? ParseMetrics(outcome->body) : ServerState();
}

// Clients that post large bodies to count_tokens, on a thread of their own, until told to stop.
class BigBodies {
 public:
  Status Start(const ServerLoad& load) {
    if (load.big_bodies == 0) return Status::Ok();
    DI_ASSIGN_OR_RETURN(client_, LoadClient::Make(load.address));
    // Most of it is one message, as after reading a large file.
    std::string body = fmt::format(R"({{"model":{},"messages":[{{"role":"user","content":")", DumpJson(Json(load.model)));
    const std::string_view end = R"("}]})";
    Random random(load.seed);
    while (static_cast<int64_t>(body.size() + end.size()) < load.big_body_bytes) {
      const size_t left = static_cast<size_t>(load.big_body_bytes) - body.size() - end.size();
      body.append((Text(random, 64) + ".\\n").substr(0, left));
      if (body.back() == '\\') body.back() = '.';
    }
    body += end;
    bytes_ = std::make_shared<const std::string>(Head(load, "POST", "/v1/messages/count_tokens", body.size()) + body);
    thread_ = std::thread([this, num = load.big_bodies] {
      for (int64_t i = 0; i < num; ++i) Post();
      client_->Run();
    });
    return Status::Ok();
  }
  void Stop(ServerLoadResult& result) {
    if (!thread_.joinable()) return;
    client_->Stop();
    thread_.join();
    result.num_big = static_cast<int64_t>(times_ms_.size());
    result.num_big_failed = num_failed_;
    result.big_ms = std::move(times_ms_);
    for (const auto& [error, count] : errors_) result.errors["count_tokens: " + error] += count;
  }

 private:
  void Post() {
    client_->Send({.bytes = bytes_}, [this](LoadOutcome&& outcome) {
      times_ms_.push_back(static_cast<double>(outcome.end_ns - outcome.begin_ns) * 1e-6);
      if (!outcome.is_ok()) {
        ++num_failed_;
        if (errors_.size() < kMaxErrors) ++errors_[outcome.error];
        // A server that refuses is not asked again and again at full speed.
        return client_->At(Now() + kTickNs, [this] { Post(); });
      }
      Post();
    });
  }

  std::unique_ptr<LoadClient> client_;
  std::shared_ptr<const std::string> bytes_;
  std::thread thread_;
  int64_t num_failed_ = 0;
  std::map<std::string, int64_t> errors_;
  std::vector<double> times_ms_;
};

class Load {
 public:
  Load(const ServerLoad& load, LoadClient& client, Progress& progress) : load_(load), client_(client), progress_(progress), random_(load.seed) {}

  Result<ServerLoadResult> Run() {
    result_.before = ReadState(client_, load_);
    DI_RETURN_IF_ERROR(WarmUp());
    DI_RETURN_IF_ERROR(OpenIdle());
    BigBodies big;
    DI_RETURN_IF_ERROR(big.Start(load_));
    client_.gaps_ms.clear();
    client_.num_connected = client_.max_under_way = 0;
    begin_ns_ = last_ns_ = Now();
    end_ns_ = load_.duration_ns > 0 ? begin_ns_ + load_.duration_ns : INT64_MAX;
    if (load_.request_rate > 0) {
      next_ns_ = begin_ns_;
      Arrive();
    } else {
      for (int64_t i = 0; i < load_.concurrency && CanStart(); ++i) Start();
    }
    Tick();
    if (!is_over_) client_.Run();
    result_.seconds = static_cast<double>(last_ns_ - begin_ns_) * 1e-9;
    result_.num_cut_off = num_running_;
    result_.num_idle_kept = static_cast<int64_t>(client_.num_idle());
    result_.max_under_way = client_.max_under_way;
    result_.num_connections = client_.num_connected;
    result_.gaps_ms = std::move(client_.gaps_ms);
    big.Stop(result_);
    client_.CutOff();
    Settle();
    return std::move(result_);
  }

 private:
  bool CanStart() const {
    return !result_.is_interrupted && (load_.num_prompts == 0 || result_.num_started < load_.num_prompts) && Now() < end_ns_;
  }

  // One request that is not counted: whether the server takes such requests at all.
  Status WarmUp() {
    const auto bytes = std::make_shared<const std::string>(MakeLoadRequest(load_, -1, std::min<int64_t>(load_.output_tokens, 16)));
    DI_ASSIGN_OR_RETURN(const LoadOutcome outcome, Ask(client_, {.bytes = bytes, .api = load_.api}));
    if (outcome.is_ok()) return Status::Ok();
    if (outcome.status == 0) return Unavailable("the first request failed: " + Escape(outcome.error, 300));
    return Unavailable(fmt::format("the first request was answered with status {}: {}", outcome.status, Escape(outcome.error, 300)));
  }

  Status OpenIdle() {
    if (load_.idle_connections == 0) return Status::Ok();
    constexpr const char* kResident = "process_resident_memory_bytes";
    const double before = ReadState(client_, load_).Get(kResident);
    int64_t num_done = 0;
    std::function<void(bool)> next = [&](bool is_open) {
      result_.num_idle_open += is_open ? 1 : 0;
      if (++num_done >= load_.idle_connections) return client_.Stop();
      if (num_done + kIdleAtOnce <= load_.idle_connections) client_.OpenIdle(next);
    };
    for (int64_t i = 0; i < std::min(kIdleAtOnce, load_.idle_connections); ++i) client_.OpenIdle(next);
    client_.Run();
    const double open = ReadState(client_, load_).Get(kResident);
    int64_t num_sent = 0, num_ended = 0, num_failed = 0;
    std::function<void()> send = [&] {
      if (num_sent >= result_.num_idle_open) return;
      const auto bytes = std::make_shared<const std::string>(MakeLoadRequest(load_, -2, std::min(load_.output_tokens, kIdleOutputTokens)));
      client_.SendOnIdle(static_cast<size_t>(num_sent++), {.bytes = bytes, .api = load_.api}, [&](LoadOutcome&& outcome) {
        num_failed += outcome.is_ok() ? 0 : 1;
        if (++num_ended >= result_.num_idle_open) return client_.Stop();
        send();
      });
    };
    for (int64_t i = 0; i < std::min(kIdleAtOnce, result_.num_idle_open); ++i) send();
    if (result_.num_idle_open > 0) client_.Run();
    const double used = ReadState(client_, load_).Get(kResident);
    if (num_failed > 0) result_.errors["idle connections: the one request failed"] += num_failed;
    if (before < 0 || result_.num_idle_open == 0) return Status::Ok();
    result_.idle_bytes = (open - before) / static_cast<double>(result_.num_idle_open);
    result_.idle_used_bytes = (used - before) / static_cast<double>(result_.num_idle_open);
    return Status::Ok();
  }

  // Open loop: the next arrival does not wait for anybody.
  void Arrive() {
    while (next_ns_ <= Now()) {
      if (!CanStart()) return CheckOver();
      if (load_.concurrency > 0 && num_running_ >= load_.concurrency) ++num_held_;
      else Start();
      next_ns_ += static_cast<int64_t>(random_.Exponential(load_.request_rate) * 1e9);
    }
    client_.At(next_ns_, [this] { Arrive(); });
  }

  void Start() {
    LoadRequest request{.bytes = std::make_shared<const std::string>(MakeLoadRequest(load_, result_.num_started, load_.output_tokens)), .api = load_.api};
    if (load_.disconnect_rate > 0 && random_.Uniform() < load_.disconnect_rate) {
      request.leave_after = static_cast<int64_t>(random_.Below(static_cast<uint64_t>(load_.output_tokens)));
    }
    ++result_.num_started;
    ++num_running_;
    client_.Send(std::move(request), [this](LoadOutcome&& outcome) { OnDone(std::move(outcome)); });
  }

  void OnDone(LoadOutcome&& outcome) {
    --num_running_;
    last_ns_ = outcome.end_ns;
    Count(outcome);
    if (load_.request_rate == 0 ? CanStart() : num_held_ > 0 && CanStart()) {
      if (load_.request_rate > 0) --num_held_;
      // A server that cannot be reached is not tried at full speed.
      if (outcome.status == 0 && !outcome.has_left) client_.At(Now() + kTickNs, [this] { if (CanStart()) Start(); });
      else Start();
    }
    CheckOver();
  }

  void Count(const LoadOutcome& outcome) {
    if (outcome.has_left) {
      ++result_.num_left;
    } else if (outcome.is_ok()) {
      ++result_.num_ok;
    } else {
      ++result_.num_failed;
      if (outcome.status == 0 || (outcome.status == 200 && !outcome.is_complete)) ++result_.num_lost;
      const std::string text = outcome.status == 0 ? outcome.error : fmt::format("status {}: {}", outcome.status, outcome.error);
      if (result_.errors.size() < kMaxErrors || result_.errors.contains(text)) ++result_.errors[text];
    }
    if (!outcome.has_left || outcome.status != 0) ++result_.by_status[outcome.status];
    result_.prompt_tokens += outcome.prompt_tokens;
    result_.cached_tokens += outcome.cached_tokens;
    result_.num_events += outcome.num_events;
    // Of streams that were left the events tell about how many tokens there were.
    result_.output_tokens += outcome.has_usage ? outcome.output_tokens : outcome.num_events;
    if (!outcome.is_ok() || outcome.num_events == 0) return;
    result_.ttft_ms.push_back(static_cast<double>(outcome.first_ns - outcome.begin_ns) * 1e-6);
    result_.e2el_ms.push_back(static_cast<double>(outcome.last_ns - outcome.begin_ns) * 1e-6);
    if (outcome.output_tokens > 1) {
      result_.tpot_ms.push_back(static_cast<double>(outcome.last_ns - outcome.first_ns) * 1e-6 / static_cast<double>(outcome.output_tokens - 1));
    }
  }

  void CheckOver() {
    if (is_over_ || num_running_ > 0) return;
    if (CanStart()) return;  // an arrival or a retry is due
    is_over_ = true;
    client_.Stop();
  }

  void Tick() {
    if (interrupt_.requested()) result_.is_interrupted = true;
    const int64_t now_ns = Now();
    const int64_t num_done = result_.num_started - num_running_;
    if (load_.num_prompts > 0) progress_.Update(num_done, load_.num_prompts);
    else progress_.Update((std::min(now_ns, end_ns_) - begin_ns_) / kNsPerS, load_.duration_ns / kNsPerS);  // of seconds
    if (result_.is_interrupted || (end_ns_ != INT64_MAX && now_ns > end_ns_ + kGraceNs)) {
      is_over_ = true;
      last_ns_ = now_ns;
      return client_.Stop();
    }
    CheckOver();
    if (!is_over_) client_.At(now_ns + kTickNs, [this] { Tick(); });
  }

  // Requests that the client has left end in the server soon after: what is still there then has leaked.
  void Settle() {
    std::unique_ptr<LoadClient> client;
    if (Result<std::unique_ptr<LoadClient>> made = LoadClient::Make(load_.address); made.ok()) client = *std::move(made);
    if (client == nullptr) return;
    const int64_t until_ns = Now() + kSettleNs;
    while (true) {
      result_.after = ReadState(*client, load_);
      if (result_.leaked() <= 0 || Now() > until_ns) return;
      client->At(Now() + kTickNs, [&] { client->Stop(); });
      client->Run();
    }
  }

  const ServerLoad& load_;
  LoadClient& client_;
  Progress& progress_;
  Random random_;
  InterruptScope interrupt_;
  ServerLoadResult result_;
  int64_t begin_ns_ = 0, end_ns_ = 0, next_ns_ = 0, last_ns_ = 0;
  int64_t num_running_ = 0, num_held_ = 0;
  bool is_over_ = false;
};

}  // namespace

double ServerLoadResult::leaked() const {
  if (after.Get("deepinfer_requests_running") < 0) return -1;
  double leaked = 0;
  for (const char* name : {"deepinfer_requests_running", "deepinfer_requests_waiting", "deepinfer_http_generations"}) leaked += std::max(0.0, after.Get(name));
  return leaked + std::max(0.0, after.Get("deepinfer_kv_blocks_used") - std::max(0.0, before.Get("deepinfer_kv_blocks_used")));
}

std::string MakeLoadRequest(const ServerLoad& load, int64_t index, int64_t output_tokens) {
  Random random(load.seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(index + 16));
  const std::string text = Text(random, load.input_tokens);
  constexpr const char* kToolText = "The weather of a city.";
  const Json schema = {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}, {"days", {{"type", "array"}, {"items", {{"type", "integer"}}}}}}}};
  Json body{{"model", load.model}, {"stream", true}};
  std::string_view path;
  switch (load.api) {
    case LoadApi::kChat:
      path = "/v1/chat/completions";
      body["messages"] = Json::array({{{"role", "user"}, {"content", text}}});
      body["max_tokens"] = output_tokens;
      body["stream_options"] = {{"include_usage", true}};
      if (load.with_tool) {
        body["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", "weather"}, {"description", kToolText}, {"parameters", schema}}}}});
      }
      break;
    case LoadApi::kCompletions:
      path = "/v1/completions";
      body["prompt"] = text;
      body["max_tokens"] = output_tokens;
      body["ignore_eos"] = true;
      body["stream_options"] = {{"include_usage", true}};
      break;
    case LoadApi::kMessages:
      path = "/v1/messages";
      body["messages"] = Json::array({{{"role", "user"}, {"content", text}}});
      body["max_tokens"] = output_tokens;
      if (load.with_tool) body["tools"] = Json::array({{{"name", "weather"}, {"description", kToolText}, {"input_schema", schema}}});
      break;
    case LoadApi::kResponses:
      path = "/v1/responses";
      body["input"] = text;
      body["max_output_tokens"] = output_tokens;
      if (load.with_tool) body["tools"] = Json::array({{{"type", "function"}, {"name", "weather"}, {"description", kToolText}, {"parameters", schema}}});
      break;
  }
  const std::string bytes = DumpJson(body);
  return Head(load, "POST", path, bytes.size()) + bytes;
}

Result<std::string> FirstModel(LoadClient& client, const ServerLoad& load) {
  DI_ASSIGN_OR_RETURN(const LoadOutcome outcome, Ask(client, {.bytes = Get(load, "/v1/models"), .api = load.api}));
  const Result<Json> body = ParseJson(outcome.body);
  if (outcome.is_ok() && body.ok() && body->is_object() && body->contains("data") && (*body)["data"].is_array() && !(*body)["data"].empty()) {
    const Json& first = (*body)["data"][0];
    if (first.is_object() && first.contains("id") && first["id"].is_string()) return first["id"].get<std::string>();
  }
  return Unavailable(fmt::format("the list of models was answered with status {}{}{}; give --model-name", outcome.status,
                                 outcome.error.empty() ? "" : ": ", Escape(outcome.error, 300)));
}

Result<ServerLoadResult> RunServerLoad(const ServerLoad& load, Progress& progress) {
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<LoadClient> client, LoadClient::Make(load.address));
  return Load(load, *client, progress).Run();
}

}  // namespace deepinfer::cli
