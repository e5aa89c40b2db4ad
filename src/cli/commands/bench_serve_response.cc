// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_serve_response.h"

#include <algorithm>
#include <charconv>

#include "core/ascii.h"
#include "core/json.h"

namespace deepinfer::cli {

namespace {

constexpr size_t kMaxHeadBytes = 64 << 10;
constexpr size_t kMaxErrorBytes = 300;

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

int64_t Count(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

}  // namespace

// ---- response -------------------------------------------------------------------------------------------------------------

// Moves bytes up to a line feed to line_; true when the line is whole, without its end.
bool ResponseReader::TakeLine(std::string_view& data) {
  const size_t end = data.find('\n');
  line_.append(data.substr(0, end));
  if (line_.size() > kMaxHeadBytes) state_ = State::kFailed;
  data.remove_prefix(end == std::string_view::npos ? data.size() : end + 1);
  if (end == std::string_view::npos) return false;
  if (!line_.empty() && line_.back() == '\r') line_.pop_back();
  return true;
}

void ResponseReader::Feed(std::string_view data) {
  while (!data.empty() && state_ != State::kFailed) {
    switch (state_) {
      case State::kHead:
        if (!TakeLine(data)) break;
        ReadHead();
        line_.clear();
        break;
      case State::kLength:
      case State::kChunk: {
        const size_t size = static_cast<size_t>(std::min<int64_t>(left_, static_cast<int64_t>(data.size())));
        body_.append(data.substr(0, size));
        data.remove_prefix(size);
        left_ -= static_cast<int64_t>(size);
        if (left_ == 0) state_ = state_ == State::kLength ? State::kDone : State::kChunkEnd;
        break;
      }
      case State::kUntilEnd:
        body_.append(data);
        return;
      case State::kChunkSize: {
        if (!TakeLine(data)) break;
        const auto [end, error] = std::from_chars(line_.data(), line_.data() + line_.size(), left_, 16);
        if (error != std::errc() || left_ < 0) state_ = State::kFailed;
        else state_ = left_ == 0 ? State::kTrailer : State::kChunk;
        line_.clear();
        break;
      }
      case State::kChunkEnd:
        if (!TakeLine(data)) break;
        state_ = line_.empty() ? State::kChunkSize : State::kFailed;
        line_.clear();
        break;
      case State::kTrailer:
        if (!TakeLine(data)) break;
        if (line_.empty()) state_ = State::kDone;
        line_.clear();
        break;
      case State::kDone:
      case State::kFailed: state_ = State::kFailed; break;
    }
  }
}

void ResponseReader::End() {
  if (state_ == State::kUntilEnd) state_ = State::kDone;
  else if (state_ != State::kDone) state_ = State::kFailed;
}

// One line of the head; the empty one ends it.
void ResponseReader::ReadHead() {
  if (status_ == 0 || status_ == 100) {
    if (line_.empty()) return;  // behind a 100 Continue
    int status = 0;
    if (line_.size() >= 12 && line_.starts_with("HTTP/1.")) std::from_chars(line_.data() + 9, line_.data() + 12, status);
    if (status < 100) state_ = State::kFailed;
    status_ = status;
    left_ = -1;
    keep_alive_ = line_.size() > 7 && line_[7] != '0';
    return;
  }
  if (!line_.empty()) {
    const size_t colon = std::min(line_.find(':'), line_.size());
    const std::string name = AsciiLower(std::string_view(line_).substr(0, colon));
    std::string value = AsciiLower(std::string_view(line_).substr(std::min(colon + 1, line_.size())));
    value.erase(0, std::min(value.find_first_not_of(' '), value.size()));
    if (name == "content-length") std::from_chars(value.data(), value.data() + value.size(), left_);
    else if (name == "transfer-encoding" && Has(value, "chunked")) left_ = -2;
    else if (name == "connection" && Has(value, "close")) keep_alive_ = false;
    else if (name == "content-type") is_event_stream_ = value.starts_with("text/event-stream");
    return;
  }
  if (status_ == 204 || status_ == 304 || left_ == 0) state_ = State::kDone;
  else if (left_ > 0) state_ = State::kLength;
  else state_ = left_ == -2 ? State::kChunkSize : State::kUntilEnd;
  if (state_ == State::kUntilEnd) keep_alive_ = false;
}

// ---- events ---------------------------------------------------------------------------------------------------------------

int64_t EventCounter::Take(std::string& body) {
  int64_t count = 0;
  size_t begin = 0;
  for (size_t at = body.find('\n'); at != std::string::npos; at = body.find('\n', at + 1)) {
    // A blank line ends an event.
    size_t next = at + 1;
    if (next < body.size() && body[next] == '\r') ++next;
    if (next >= body.size() || body[next] != '\n') continue;
    if (at > begin) count += OnEvent(std::string_view(body).substr(begin, at - begin)) ? 1 : 0;
    begin = next + 1;
    at = next;
  }
  if (begin == body.size()) body.clear();
  else body.erase(0, begin);
  return count;
}

bool EventCounter::OnEvent(std::string_view event) {
  if (event.front() == ':') return false;
  if (event.starts_with("data: {\"error\"") || event.starts_with("event: error") || event.starts_with("event: response.failed")) {
    if (error_.empty()) error_ = std::string(event.substr(0, kMaxErrorBytes));
    return false;
  }
  switch (api_) {
    case LoadApi::kChat:
    case LoadApi::kCompletions:
      if (event.starts_with("data: [DONE]")) {
        has_end_ = true;
        return false;
      }
      if (Has(event, "\"finish_reason\":\"")) has_finish_ = true;
      break;
    case LoadApi::kMessages:
      if (event.starts_with("event: ping")) return false;
      if (event.starts_with("event: message_stop")) has_end_ = true;
      if (Has(event, "\"stop_reason\":\"")) has_finish_ = true;
      break;
    case LoadApi::kResponses:
      if (event.starts_with("event: response.completed") || event.starts_with("event: response.incomplete")) has_end_ = has_finish_ = true;
      break;
  }
  if (Has(event, "\"usage\":{")) ReadUsage(event);
  return true;
}

void EventCounter::ReadUsage(std::string_view event) {
  const size_t data = event.find("data:");
  if (data == std::string_view::npos) return;
  const Result<Json> parsed = ParseJson(event.substr(data + 5));
  if (!parsed.ok()) return;
  const Json* usage = nullptr;
  for (const char* holder : {"message", "response"}) {
    if (parsed->contains(holder) && (*parsed)[holder].is_object() && (*parsed)[holder].contains("usage")) usage = &(*parsed)[holder]["usage"];
  }
  if (parsed->contains("usage")) usage = &(*parsed)["usage"];
  if (usage == nullptr || !usage->is_object()) return;
  has_usage_ = true;
  const auto details = [usage](const char* key) {
    const auto found = usage->find(key);
    return found != usage->end() && found->is_object() ? Count(*found, "cached_tokens") : 0;
  };
  // Messages names what was not cached and what was; the end repeats the counts of the beginning.
  const int64_t cached = std::max({Count(*usage, "cache_read_input_tokens"), Count(*usage, "prompt_cache_hit_tokens"),
                                   details("prompt_tokens_details"), details("input_tokens_details")});
  int64_t prompt = std::max(Count(*usage, "prompt_tokens"), Count(*usage, "input_tokens"));
  if (api_ == LoadApi::kMessages) prompt += cached;
  prompt_tokens_ = std::max(prompt_tokens_, prompt);
  cached_tokens_ = std::max(cached_tokens_, cached);
  output_tokens_ = std::max({output_tokens_, Count(*usage, "completion_tokens"), Count(*usage, "output_tokens")});
}

}  // namespace deepinfer::cli
