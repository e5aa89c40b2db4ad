// SPDX-License-Identifier: Apache-2.0
#include "server/generation.h"

#include <utility>

#include <fmt/format.h>

#include "core/clock.h"

namespace deepinfer::server {

namespace {

// More than this is not put into a connection's buffer: the rest waits here, where it can be bounded.
constexpr size_t kMaxUnsentChunks = 64 << 10;
constexpr std::string_view kEventStream = "text/event-stream; charset=utf-8";

// The error that a client is told; OK for the normal ends.
Status EndStatus(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
    case FinishReason::kLength: return Status::Ok();
    case FinishReason::kTimeout: return Status(StatusCode::kDeadlineExceeded, "the request took longer than its time limit");
    case FinishReason::kPromptLengthExceeded: return InvalidArgument("the prompt is longer than the context");
    case FinishReason::kInvalidToken: return InvalidArgument("the prompt holds a token id outside the vocabulary");
    case FinishReason::kInvalidLogits: return Internal("the model gave logits that are not finite");
    case FinishReason::kInsufficientResource: return Unavailable("the request was taken off the device for lack of cache memory; try again later");
    case FinishReason::kAbort: return Unavailable("the request was aborted by the server");
    case FinishReason::kStructuredOutputFailed: return Internal("the form that was asked for allows no further token: its grammar cannot be fulfilled");
    default: return Internal("the step that computed the answer failed");
  }
}

}  // namespace

Generation::Generation(std::shared_ptr<Exchange> exchange, std::unique_ptr<Reply> reply, int64_t num_prompt_tokens, int num_samples,
                       const GenerationLimits& limits, ErrorResponder responder, std::function<void()> on_end)
    : exchange_(std::move(exchange)),
      limits_(limits),
      responder_(std::move(responder)),
      on_end_(std::move(on_end)),
      reply_(std::move(reply)),
      num_open_(num_samples),
      prompt_tokens_(num_prompt_tokens),
      begin_ns_(Clock::Steady().NowNs()),
      last_sent_ns_(begin_ns_),
      is_event_stream_(reply_->is_event_stream()) {}

void Generation::Begin(Backend& backend, std::vector<BackendRequest> requests) {
  int first_sample = 0;
  for (BackendRequest& request : requests) {
    const int num_samples = request.text.params.n;
    auto callback = [self = shared_from_this(), first_sample](const BackendOutput& output) { return self->OnOutput(first_sample, output); };
    Result<std::shared_ptr<BackendHandle>> handle = backend.Submit(std::move(request), std::move(callback));
    std::lock_guard lock(mutex_);
    if (!handle.ok()) {
      failure_ = handle.status();
      is_done_ = true;
      for (const auto& other : handles_) other->Cancel();
      break;
    }
    handles_.push_back(*std::move(handle));
    if (is_cancelled_.load()) handles_.back()->Cancel();
    first_sample += num_samples;
  }
  exchange_->io().Post([self = shared_from_this()] { self->Run(); });
}

void Generation::SetNames(std::string model, std::string traffic_class) {
  model_ = std::move(model);
  traffic_class_ = std::move(traffic_class);
}

void Generation::StopSoon(const Status& status) {
  exchange_->io().Post([self = shared_from_this(), status] { self->Stop(status); });
}

// Outputs may wake the I/O thread before Begin has returned: the first of them does this.
void Generation::Attach() {
  if (is_attached_) return;
  is_attached_ = true;
  exchange_->record.model = model_;
  exchange_->record.traffic_class = traffic_class_;
  exchange_->record.submitted_ns = begin_ns_;
  exchange_->record.num_charged = num_charged_;
  exchange_->SetObserver(shared_from_this());
}

// ---- the backend's thread ----------------------------------------------------------------------------------------------------

StreamAction Generation::OnOutput(int first_sample, const BackendOutput& from) {
  if (is_cancelled_.load(std::memory_order_relaxed)) return StreamAction::kAbort;
  BackendOutput output = from;
  output.sample += first_sample;
  StreamAction action = StreamAction::kContinue;
  std::lock_guard lock(mutex_);
  if (is_done_) return StreamAction::kAbort;
  const bool has_output = output.token != nullptr || !output.text.empty() || output.num_text_tokens > 0;
  const bool is_end = output.finish_reason != FinishReason::kNone;
  const Status end = is_end ? EndStatus(output.finish_reason) : Status::Ok();
  if (!is_started_ && end.ok()) {
    is_started_ = true;
    cached_tokens_ = output.cached_tokens;
    if (output.prompt_tokens >= 0) prompt_tokens_ = output.prompt_tokens;
    first_token_ns_ = Clock::Steady().NowNs();
    reply_->Start(prompt_tokens_, cached_tokens_, pending_);
  }
  if (has_output && end.ok()) action = reply_->Push(output, pending_);
  if (is_end) {
    if (end.ok()) {
      reply_->EndSample(output, pending_);
      if (--num_open_ == 0) is_done_ = true;
    } else {
      failure_ = end;
      is_done_ = true;
    }
  }
  if (pending_.size() > limits_.max_pending_bytes && is_event_stream_ && !is_done_) {
    is_too_slow_.store(true);
    action = StreamAction::kAbort;
    is_done_ = true;
  }
  if ((is_event_stream_ && !pending_.empty()) || is_done_) WakeIo();
  return action;
}

void Generation::FillRecord() {
  ExchangeRecord& record = exchange_->record;
  record.output_tokens = reply_->num_output_tokens();
  record.prompt_tokens = prompt_tokens_;
  record.cached_tokens = cached_tokens_;
  record.first_token_ns = first_token_ns_;
  record.num_used = is_started_ ? record.prompt_tokens + record.output_tokens : 0;
  if (probe_ == nullptr) return;
  record.scheduled_ns = probe_->scheduled_ns.load(std::memory_order_relaxed);
  record.num_preempted = probe_->num_preempted.load(std::memory_order_relaxed);
  record.preempted_ns = probe_->preempted_ns.load(std::memory_order_relaxed);
}

void Generation::WakeIo() {
  if (is_scheduled_) return;
  is_scheduled_ = true;
  exchange_->io().Schedule(shared_from_this());
}

void Generation::Cancel() {
  is_cancelled_.store(true);
  std::lock_guard lock(mutex_);
  for (const auto& handle : handles_) handle->Cancel();
}

// ---- the I/O thread ----------------------------------------------------------------------------------------------------------

void Generation::Run() {
  bool is_done = false, is_waiting = false;
  Status failure;
  Attach();
  if (is_ended_ || exchange_->is_over()) return;
  {
    std::lock_guard lock(mutex_);
    is_scheduled_ = false;
    FillRecord();
    ExchangeRecord& record = exchange_->record;
    is_done = is_done_;
    failure = failure_;
    if (is_done && failure.ok()) {
      record.reason = std::string(reply_->reason());
      record.has_usage = true;
    }
    const bool wants_send = !pending_.empty() && failure.ok() && (is_event_stream_ || is_done);
    is_waiting = wants_send && exchange_->num_unsent() >= kMaxUnsentChunks;  // OnDrained comes
    if (wants_send && !is_waiting) sending_.swap(pending_);
  }
  if (is_done && is_too_slow_.load()) {
    OnGone();
    return exchange_->Abort("slow_reader");
  }
  if (is_done && !failure.ok()) return Fail(failure);
  if (is_waiting) return;
  if (is_done && !exchange_->has_begun() && !is_event_stream_) {
    HttpResponse response;
    response.body = std::move(sending_);
    is_ended_ = true;
    exchange_->Respond(response);
    return End();
  }
  if (!sending_.empty()) {
    BeginResponse();
    exchange_->Write(sending_);
    sending_.clear();
    last_sent_ns_ = Clock::Steady().NowNs();
  }
  if (!is_done || exchange_->is_over()) return;
  is_ended_ = true;
  exchange_->Finish();
  End();
}

void Generation::BeginResponse() {
  if (exchange_->has_begun()) return;
  if (is_event_stream_) {
    exchange_->Begin(200, kEventStream, {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
  } else {
    exchange_->Begin(200, "application/json");
  }
}

void Generation::SendKeepAlive() {
  BeginResponse();
  std::string text;
  {
    std::lock_guard lock(mutex_);
    reply_->KeepAlive(text);
  }
  exchange_->Write(text);
  last_sent_ns_ = Clock::Steady().NowNs();
}

void Generation::OnHalfClosed() {
  if (!is_ended_) SendKeepAlive();
}

void Generation::OnTick(int64_t now_ns) {
  if (is_ended_) return;
  bool is_started;
  {
    std::lock_guard lock(mutex_);
    is_started = is_started_;
  }
  if (!is_started && now_ns - begin_ns_ > limits_.first_token_ns) {
    return Stop(Status(StatusCode::kDeadlineExceeded,
                       fmt::format("no token was generated within {} s", limits_.first_token_ns / 1'000'000'000)));
  }
  if (now_ns - last_sent_ns_ >= limits_.keep_alive_ns && exchange_->num_unsent() == 0) SendKeepAlive();
}

void Generation::Stop(const Status& status) {
  Attach();
  if (is_ended_ || exchange_->is_over()) return;
  Cancel();
  Fail(status);
}

void Generation::Fail(const Status& status) {
  is_ended_ = true;
  {
    std::lock_guard lock(mutex_);
    is_done_ = true;
    FillRecord();
    if (exchange_->has_begun()) {
      std::string& out = exchange_->Open();
      if (is_event_stream_) out += pending_;
      pending_.clear();
      reply_->Fail(status, out);
      (void)responder_(*exchange_, status);  // for the counters
    }
  }
  if (exchange_->has_begun()) {
    exchange_->Close();
    if (!exchange_->is_over()) exchange_->record.reason = "error";
    exchange_->Finish();
  } else {
    exchange_->Respond(responder_(*exchange_, status));
  }
  End();
}

void Generation::OnGone() {
  if (is_ended_) return;
  is_ended_ = true;
  {
    std::lock_guard lock(mutex_);
    FillRecord();
    if (!is_started_) exchange_->record.prompt_tokens = 0;
    exchange_->record.has_usage = true;
  }
  Cancel();
  End();
}

void Generation::End() {
  is_ended_ = true;
  std::vector<std::shared_ptr<BackendHandle>> handles;
  {
    std::lock_guard lock(mutex_);
    handles.swap(handles_);
    std::string().swap(pending_);
  }
  if (auto on_end = std::exchange(on_end_, nullptr)) on_end();
}

}  // namespace deepinfer::server
