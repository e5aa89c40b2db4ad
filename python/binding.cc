// SPDX-License-Identifier: Apache-2.0
//
// deepinfer._core: a thin layer over deepinfer::LLM. The Python package on top of it (llm.py, sampling_params.py) has the
// public names and their documentation. Generation runs without the interpreter lock; Ctrl-C and other signals are seen
// between steps.
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "constrain/structured_output.h"
#include "deepinfer/engine.h"
#include "deepinfer/llm.h"
#include "sampling/params.h"

namespace nb = nanobind;

namespace deepinfer {
namespace {

PyObject* model_error = nullptr;     // deepinfer.ModelError
PyObject* resource_error = nullptr;  // deepinfer.ResourceError

[[noreturn]] void Raise(const Status& status) {
  PyObject* type = PyExc_RuntimeError;
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kTooLarge: type = PyExc_ValueError; break;
    case StatusCode::kBadModel:
    case StatusCode::kNotFound: type = model_error; break;
    case StatusCode::kResourceExhausted: type = resource_error; break;
    case StatusCode::kUnimplemented: type = PyExc_NotImplementedError; break;
    default: break;
  }
  const nb::object error = nb::borrow(type)(nb::str(status.message().c_str(), status.message().size()));
  if (!status.field().empty()) error.attr("field") = status.field();
  PyErr_SetObject(type, error.ptr());
  throw nb::python_error();
}

template <typename T>
T Take(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}

// Polls the interpreter's signals between steps, a few times a second, and keeps the exception a handler raised.
class SignalCancel : public CancelToken {
 public:
  explicit SignalCancel(CancelToken* other) : other_(other) {}

  bool is_cancelled() const override {
    if (has_error() || (other_ != nullptr && other_->is_cancelled())) return true;
    const auto now = std::chrono::steady_clock::now();
    if (now - checked_ < std::chrono::milliseconds(50)) return false;
    checked_ = now;
    nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) error_ = std::make_unique<nb::python_error>();
    return has_error();
  }
  void SetError(std::unique_ptr<nb::python_error> error) { error_ = std::move(error); }
  bool has_error() const { return error_ != nullptr; }
  // With the interpreter lock held.
  void Rethrow() {
    if (error_ == nullptr) return;
    nb::python_error error = std::move(*error_);
    error_.reset();
    throw error;
  }

 private:
  CancelToken* other_;
  mutable std::unique_ptr<nb::python_error> error_;
  mutable std::chrono::steady_clock::time_point checked_ = std::chrono::steady_clock::now();
};

// What a Python callback returned: None or True go on, False stops.
StreamAction ToAction(const nb::object& result) {
  if (result.is_none()) return StreamAction::kContinue;
  return nb::cast<bool>(nb::bool_(result)) ? StreamAction::kContinue : StreamAction::kAbort;
}

nb::str ToStr(std::string_view text) { return nb::str(text.data(), text.size()); }

// Decoded text is always valid UTF-8; the names of this function's callers are the text fields.
Completion Generate(LLM& llm,
                    const std::vector<int32_t>& prompt_ids,
                    const SamplingParams& params,
                    const nb::object& callback,
                    CancelToken* cancel) {
  SignalCancel signals(cancel);
  StreamCallback stream;
  if (!callback.is_none()) {
    stream = [&](const StreamUpdate& update) {
      nb::gil_scoped_acquire gil;
      try {
        return ToAction(callback(update.token != nullptr ? nb::cast(*update.token) : nb::none(),
                                 ToStr(update.text),
                                 ToStr(FinishReasonName(update.finish_reason))));
      } catch (nb::python_error& error) {
        if (!signals.has_error()) signals.SetError(std::make_unique<nb::python_error>(std::move(error)));
        return StreamAction::kAbort;
      }
    };
  }
  std::optional<Result<Completion>> result;
  {
    nb::gil_scoped_release release;
    result.emplace(llm.GenerateFromIds(prompt_ids, params, stream, &signals));
  }
  signals.Rethrow();
  return Take(std::move(*result));
}

// Several prompts. The callback runs on a thread of the engine, so its error has its own place.
std::vector<std::vector<Completion>> GenerateBatch(LLM& llm,
                                                   std::vector<std::vector<int32_t>> prompt_ids,
                                                   const std::vector<SamplingParams>& params,
                                                   const nb::object& callback,
                                                   const nb::object& progress,
                                                   CancelToken* cancel) {
  CancelToken failed;  // a callback raised: the call ends
  std::unique_ptr<nb::python_error> error;  // written and read with the interpreter lock held
  const auto fail = [&](nb::python_error& e) {
    if (error == nullptr) error = std::make_unique<nb::python_error>(std::move(e));
    failed.Cancel();
  };
  struct Cancel : CancelToken {
    Cancel(CancelToken* other, const CancelToken& failed_call) : signals(other), failed(failed_call) {}
    bool is_cancelled() const override { return failed.is_cancelled() || signals.is_cancelled(); }
    SignalCancel signals;
    const CancelToken& failed;
  } either(cancel, failed);
  BatchOptions options;
  options.cancel = &either;
  if (!callback.is_none()) {
    options.callback = [&](size_t prompt, int sample, const StreamUpdate& update) {
      nb::gil_scoped_acquire gil;
      if (error != nullptr) return StreamAction::kAbort;
      try {
        return ToAction(callback(prompt,
                                 sample,
                                 update.token != nullptr ? nb::cast(*update.token) : nb::none(),
                                 ToStr(update.text),
                                 ToStr(FinishReasonName(update.finish_reason))));
      } catch (nb::python_error& e) {
        fail(e);
        return StreamAction::kAbort;
      }
    };
  }
  if (!progress.is_none()) {
    options.progress = [&](size_t num_done) {
      nb::gil_scoped_acquire gil;
      if (error != nullptr) return;
      try {
        progress(num_done);
      } catch (nb::python_error& e) {
        fail(e);
      }
    };
  }
  std::vector<BatchRequest> requests;
  for (size_t i = 0; i < prompt_ids.size(); ++i) requests.push_back({std::move(prompt_ids[i]), params.at(i)});
  std::optional<Result<std::vector<std::vector<Completion>>>> result;
  {
    nb::gil_scoped_release release;
    result.emplace(llm.GenerateBatch(requests, options));
  }
  if (error != nullptr) {
    nb::python_error raised = std::move(*error);
    error.reset();
    throw raised;
  }
  either.signals.Rethrow();
  return Take(std::move(*result));
}

ChatCompletion Chat(LLM& llm,
                    const std::vector<ChatMessage>& messages,
                    const SamplingParams& params,
                    const ChatOptions& options,
                    const nb::object& callback,
                    CancelToken* cancel) {
  SignalCancel signals(cancel);
  ChatCallback stream;
  if (!callback.is_none()) {
    stream = [&](const ChatDelta& delta) {
      nb::gil_scoped_acquire gil;
      try {
        return ToAction(callback(ToStr(delta.reasoning),
                                 ToStr(delta.content),
                                 delta.tool_call_idx,
                                 ToStr(delta.tool_name),
                                 ToStr(delta.tool_arguments)));
      } catch (nb::python_error& error) {
        if (!signals.has_error()) signals.SetError(std::make_unique<nb::python_error>(std::move(error)));
        return StreamAction::kAbort;
      }
    };
  }
  std::optional<Result<ChatCompletion>> result;
  {
    nb::gil_scoped_release release;
    result.emplace(llm.Chat(messages, params, options, stream, &signals));
  }
  signals.Rethrow();
  return Take(std::move(*result));
}

std::unique_ptr<LLM> LoadLlm(const EngineOptions& options, const nb::object& progress) {
  EngineOptions copy = options;
  std::unique_ptr<nb::python_error> error;
  if (!progress.is_none()) {
    copy.progress = [&](int64_t done, int64_t total) {
      nb::gil_scoped_acquire gil;
      if (error != nullptr) return;
      try {
        progress(done, total);
      } catch (nb::python_error& e) {
        error = std::make_unique<nb::python_error>(std::move(e));
      }
    };
  }
  std::optional<Result<std::unique_ptr<LLM>>> result;
  {
    nb::gil_scoped_release release;
    result.emplace(LLM::Load(std::move(copy)));
  }
  if (error != nullptr) {
    nb::python_error raised = std::move(*error);
    throw raised;
  }
  return Take(std::move(*result));
}

// One output of one request, as LLMEngine.step() reads it.
struct EngineOutput {
  uint64_t tag = 0;
  int sample = 0;
  std::optional<TokenOutput> token;
  std::string text, finish_reason;
  int64_t cached_tokens = 0;
  std::vector<float> prompt_logprobs;  // with the first token
  std::optional<std::string> stop_string;  // with the last output
  std::optional<int32_t> stop_token_id;
};

// Engine with one queue for the outputs of all its requests.
class EngineQueue {
 public:
  explicit EngineQueue(const EngineOptions& options) {
    std::optional<Result<std::unique_ptr<Engine>>> result;
    {
      nb::gil_scoped_release release;
      result.emplace(Engine::Start(options));
    }
    engine_ = Take(std::move(*result));
  }

  void Submit(uint64_t tag, std::vector<int32_t> prompt_ids, const SamplingParams& params, std::string cache_salt,
              std::vector<int64_t> chunk_checkpoints) {
    GenerationRequest request;
    request.prompt_ids = std::move(prompt_ids);
    request.params = params;
    request.cache_salt = std::move(cache_salt);
    request.chunk_checkpoints = std::move(chunk_checkpoints);
    Request handle = Take(engine_->Submit(std::move(request), [this, tag](int sample, const StreamUpdate& update) {
      Push(tag, sample, update);
      return StreamAction::kContinue;
    }));
    requests_.emplace(tag, std::move(handle));
  }

  // Waits at most that long for the first output, then takes all that are there.
  std::vector<EngineOutput> TakeOutputs(double wait_s) {
    std::vector<EngineOutput> taken;
    {
      nb::gil_scoped_release release;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::duration<double>(wait_s), [&] { return !outputs_.empty(); });
      taken.swap(outputs_);
    }
    return taken;
  }

  void Cancel(uint64_t tag) {
    if (const auto it = requests_.find(tag); it != requests_.end()) it->second.Cancel();
  }
  void Forget(uint64_t tag) { requests_.erase(tag); }
  Engine& engine() { return *engine_; }

 private:
  void Push(uint64_t tag, int sample, const StreamUpdate& update) {
    EngineOutput output;
    output.tag = tag;
    output.sample = sample;
    if (update.token != nullptr) output.token = *update.token;
    output.text = update.text;
    output.finish_reason = FinishReasonName(update.finish_reason);
    if (const Completion* c = update.completion; c != nullptr) {
      if (c->ids.size() == 1) {
        output.cached_tokens = c->usage.cached_tokens;
        output.prompt_logprobs = c->prompt_logprobs;
      }
      if (update.finish_reason != FinishReason::kNone) {
        output.stop_string = c->stop_string;
        output.stop_token_id = c->stop_token_id;
      }
    }
    {
      std::lock_guard lock(mutex_);
      outputs_.push_back(std::move(output));
    }
    changed_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<EngineOutput> outputs_;  // GUARDED_BY(mutex_)
  std::map<uint64_t, Request> requests_;
  std::unique_ptr<Engine> engine_;  // goes first: its last outputs still come here
};

void BindEngine(nb::module_& m) {
  nb::class_<EngineOutput>(m, "EngineOutput")
      .def_ro("tag", &EngineOutput::tag)
      .def_ro("sample", &EngineOutput::sample)
      .def_ro("token", &EngineOutput::token)
      .def_prop_ro("text", [](const EngineOutput& o) { return ToStr(o.text); })
      .def_prop_ro("finish_reason", [](const EngineOutput& o) { return ToStr(o.finish_reason); })
      .def_ro("cached_tokens", &EngineOutput::cached_tokens)
      .def_ro("prompt_logprobs", &EngineOutput::prompt_logprobs)
      .def_ro("stop_string", &EngineOutput::stop_string)
      .def_ro("stop_token_id", &EngineOutput::stop_token_id);
  nb::class_<EngineQueue>(m, "Engine")
      .def(nb::init<const EngineOptions&>(), nb::arg("options"))
      .def("submit", &EngineQueue::Submit, nb::arg("tag"), nb::arg("prompt_ids"), nb::arg("params"), nb::arg("cache_salt"),
           nb::arg("chunk_checkpoints"))
      .def("take_outputs", &EngineQueue::TakeOutputs, nb::arg("wait_s"))
      .def("cancel", &EngineQueue::Cancel, nb::arg("tag"))
      .def("forget", &EngineQueue::Forget, nb::arg("tag"))
      .def("stats",
           [](EngineQueue& e) {
             const EngineStats s = e.engine().Stats();
             nb::dict d;
             d["num_running"] = s.num_running;
             d["num_waiting"] = s.num_waiting;
             d["num_unfinished"] = s.num_unfinished;
             d["num_steps"] = s.num_steps;
             d["num_prefill_steps"] = s.num_prefill_steps;
             d["num_decode_steps"] = s.num_decode_steps;
             d["num_finished"] = s.num_finished;
             d["num_aborted"] = s.num_aborted;
             d["num_preempted"] = s.num_preempted;
             d["num_prefill_tokens"] = s.num_prefill_tokens;
             d["num_cached_tokens"] = s.num_cached_tokens;
             d["num_output_tokens"] = s.num_output_tokens;
             d["num_blocks"] = s.num_blocks;
             d["num_used_blocks"] = s.num_used_blocks;
             d["num_cached_blocks"] = s.num_cached_blocks;
             d["num_state_slots"] = s.num_state_slots;
             d["num_used_state_slots"] = s.num_used_state_slots;
             d["last_step_age_s"] = s.last_step_age_s;
             d["is_healthy"] = s.is_healthy;
             return d;
           })
      .def("encode", [](EngineQueue& e, const std::string& text) { return e.engine().Encode(text); })
      .def("decode", [](EngineQueue& e, const std::vector<int32_t>& ids, bool skip_special_tokens) {
        return ToStr(e.engine().Decode(ids, skip_special_tokens));
      })
      .def_prop_ro("vocab_size", [](EngineQueue& e) { return e.engine().vocab_size(); })
      .def_prop_ro("eos_token_id", [](EngineQueue& e) { return e.engine().eos_token_id(); })
      .def_prop_ro("max_model_len", [](EngineQueue& e) { return e.engine().max_model_len(); })
      .def_prop_ro("prompt_limit", [](EngineQueue& e) { return e.engine().prompt_limit(); })
      .def_prop_ro("max_num_batched_tokens", [](EngineQueue& e) { return e.engine().max_num_batched_tokens(); })
      .def_prop_ro("max_num_seqs", [](EngineQueue& e) { return e.engine().max_num_seqs(); })
      .def_prop_ro("load_s", [](EngineQueue& e) { return e.engine().load_s(); });
}

void BindParams(nb::module_& m) {
  nb::class_<SamplingParams>(m, "SamplingParams")
      .def(nb::init<>())
      .def_rw("temperature", &SamplingParams::temperature)
      .def_rw("top_p", &SamplingParams::top_p)
      .def_rw("top_k", &SamplingParams::top_k)
      .def_rw("min_p", &SamplingParams::min_p)
      .def_rw("ignore_eos", &SamplingParams::ignore_eos)
      .def_rw("max_tokens", &SamplingParams::max_tokens)
      .def_rw("min_tokens", &SamplingParams::min_tokens)
      .def_rw("logprobs", &SamplingParams::logprobs)
      .def_rw("prompt_logprobs", &SamplingParams::prompt_logprobs)
      .def_rw("top_logprobs", &SamplingParams::top_logprobs)
      .def_rw("first_n_token_no_eos", &SamplingParams::first_n_token_no_eos)
      .def_rw("seq_seed", &SamplingParams::seq_seed, nb::arg().none())
      .def_rw("random_seed", &SamplingParams::random_seed)
      .def_rw("golden_token_ids", &SamplingParams::golden_token_ids)
      .def_rw("presence_penalty", &SamplingParams::presence_penalty)
      .def_rw("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_rw("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_rw("logit_bias", &SamplingParams::logit_bias)
      .def_rw("allowed_token_ids", &SamplingParams::allowed_token_ids, nb::arg().none())
      .def_rw("stop", &SamplingParams::stop)
      .def_rw("stop_token_ids", &SamplingParams::stop_token_ids)
      .def_rw("include_stop_str_in_output", &SamplingParams::include_stop_str_in_output)
      .def_rw("skip_special_tokens", &SamplingParams::skip_special_tokens)
      .def_rw("detokenize", &SamplingParams::detokenize)
      .def_rw("n", &SamplingParams::n)
      .def_rw("priority", &SamplingParams::priority)
      .def_rw("cache_mode", &SamplingParams::cache_mode)
      .def_rw("max_output_bytes", &SamplingParams::max_output_bytes, nb::arg().none())
      .def_rw("timeout_s", &SamplingParams::timeout_s, nb::arg().none())
      .def("set_so_args", [](SamplingParams& params, const std::string& json) { params.so_args = Take(constrain::ParseStructuredOutput(json)); })
      .def("validate", [](const SamplingParams& params, int vocab_size) {
        const Status status = sampling::ValidateSamplingParams(params, vocab_size);
        if (!status.ok()) Raise(status);
      }, nb::arg("vocab_size") = 0);
  nb::class_<EngineOptions>(m, "EngineOptions")
      .def(nb::init<>())
      .def_rw("model", &EngineOptions::model)
      .def_rw("revision", &EngineOptions::revision)
      .def_rw("device", &EngineOptions::device)
      .def_rw("numerics", &EngineOptions::numerics)
      .def_rw("cpu_isa", &EngineOptions::cpu_isa)
      .def_rw("cpu_pinning", &EngineOptions::cpu_pinning)
      .def_rw("cuda_plugin", &EngineOptions::cuda_plugin)
      .def_rw("memory_budget", &EngineOptions::memory_budget)
      .def_rw("expert_io", &EngineOptions::expert_io)
      .def_rw("pack_cache", &EngineOptions::pack_cache)
      .def_rw("engram_io", &EngineOptions::engram_io)
      .def_rw("load_format", &EngineOptions::load_format)
      .def_rw("num_threads", &EngineOptions::num_threads)
      .def_rw("max_model_len", &EngineOptions::max_model_len)
      .def_rw("prefill_chunk_tokens", &EngineOptions::prefill_chunk_tokens)
      .def_rw("max_num_seqs", &EngineOptions::max_num_seqs)
      .def_rw("decoder_replay", &EngineOptions::decoder_replay)
      .def_rw("decoder_replay_keep", &EngineOptions::decoder_replay_keep)
      .def_rw("raw_logprobs", &EngineOptions::raw_logprobs)
      .def_rw("compute_sum_smaller_probs", &EngineOptions::compute_sum_smaller_probs)
      .def_rw("decode_token_blacklist", &EngineOptions::decode_token_blacklist)
      .def_rw("max_num_batched_tokens", &EngineOptions::max_num_batched_tokens)
      .def_rw("chunked_prefill", &EngineOptions::chunked_prefill)
      .def_rw("lookahead_tokens", &EngineOptions::lookahead_tokens)
      .def_rw("stop_preempted_request", &EngineOptions::stop_preempted_request)
      .def_rw("zero_overhead_scheduling", &EngineOptions::zero_overhead_scheduling)
      .def_rw("max_decode_gap_ms", &EngineOptions::max_decode_gap_ms)
      .def_rw("decode_steps_per_prefill", &EngineOptions::decode_steps_per_prefill)
      .def_rw("prefill_attempt_interval", &EngineOptions::prefill_attempt_interval, nb::arg().none())
      .def_rw("prefill_any_attempt_interval", &EngineOptions::prefill_any_attempt_interval)
      .def_rw("prefill_max_sum_seqlen_k", &EngineOptions::prefill_max_sum_seqlen_k)
      .def_rw("max_queued_requests", &EngineOptions::max_queued_requests)
      .def_rw("gpu_memory_utilization", &EngineOptions::gpu_memory_utilization)
      .def_rw("num_kv_blocks", &EngineOptions::num_kv_blocks)
      .def_rw("num_state_slots_ratio", &EngineOptions::num_state_slots_ratio)
      .def_rw("cache_mode", &EngineOptions::cache_mode)
      .def_rw("cache_salt", &EngineOptions::cache_salt)
      .def_rw("kv_state_every_blocks", &EngineOptions::kv_state_every_blocks)
      .def_rw("kv_persist_swa", &EngineOptions::kv_persist_swa)
      .def_rw("kv_replay_tokens", &EngineOptions::kv_replay_tokens)
      .def_rw("batch_invariant", &EngineOptions::batch_invariant)
      .def_rw("deterministic", &EngineOptions::deterministic)
      .def_rw("num_drafts", &EngineOptions::num_drafts)
      .def_rw("varlen_verify", &EngineOptions::varlen_verify)
      .def_rw("prompt_lookup", &EngineOptions::prompt_lookup)
      .def_rw("spec_verify", &EngineOptions::spec_verify)
      .def_rw("confidence_temperature", &EngineOptions::confidence_temperature)
      .def_rw("decode_perf_cache_dir", &EngineOptions::decode_perf_cache_dir)
      .def_rw("decode_perf_cache_ttl_sec", &EngineOptions::decode_perf_cache_ttl_sec)
      .def_rw("logging_interval_step", &EngineOptions::logging_interval_step)
      .def_rw("disable_log_stats", &EngineOptions::disable_log_stats)
      .def_static("from_environment", [] { return Take(EngineOptions::FromEnvironment()); });
}

void BindOutputs(nb::module_& m) {
  nb::class_<TokenOutput>(m, "TokenOutput")
      .def_ro("token_id", &TokenOutput::token_id)
      .def_ro("logprob", &TokenOutput::logprob)
      .def_ro("sum_smaller_probs", &TokenOutput::sum_smaller_probs)
      .def_ro("top_token_ids", &TokenOutput::top_token_ids)
      .def_ro("top_logprobs", &TokenOutput::top_logprobs)
      .def_ro("num_output_tokens", &TokenOutput::num_output_tokens);
  nb::class_<Completion>(m, "Completion")
      .def_ro("prompt_ids", &Completion::prompt_ids)
      .def_ro("ids", &Completion::ids)
      .def_prop_ro("text", [](const Completion& c) { return ToStr(c.text); })
      .def_prop_ro("finish_reason", [](const Completion& c) { return ToStr(FinishReasonName(c.finish_reason)); })
      .def_ro("stop_token_id", &Completion::stop_token_id)
      .def_ro("stop_string", &Completion::stop_string)
      .def_ro("tokens", &Completion::tokens)
      .def_ro("prompt_logprobs", &Completion::prompt_logprobs)
      .def_ro("seed", &Completion::seed)
      .def_prop_ro("usage",
                   [](const Completion& c) {
                     nb::dict d;
                     d["prompt_tokens"] = c.usage.prompt_tokens;
                     d["cached_tokens"] = c.usage.cached_tokens;
                     d["completion_tokens"] = c.usage.completion_tokens;
                     return d;
                   })
      .def_prop_ro("timing", [](const Completion& c) {
        nb::dict d;
        d["load_s"] = c.timing.load_s;
        d["ttft_s"] = c.timing.ttft_s;
        d["total_s"] = c.timing.total_s;
        d["tokens_per_s"] = c.timing.tokens_per_s;
        return d;
      });
  nb::class_<ToolCall>(m, "ToolCall")
      .def(nb::init<>())
      .def_rw("id", &ToolCall::id)
      .def_rw("name", &ToolCall::name)
      .def_rw("arguments", &ToolCall::arguments);
  nb::class_<ChatMessage>(m, "ChatMessage")
      .def(nb::init<>())
      .def_rw("role", &ChatMessage::role)
      .def_rw("content", &ChatMessage::content)
      .def_rw("reasoning_content", &ChatMessage::reasoning_content)
      .def_rw("tool_calls", &ChatMessage::tool_calls)
      .def_rw("tool_call_id", &ChatMessage::tool_call_id);
  nb::class_<ChatOptions>(m, "ChatOptions")
      .def(nb::init<>())
      .def_rw("thinking", &ChatOptions::thinking)
      .def_rw("effort", &ChatOptions::effort)
      .def_rw("tools_json", &ChatOptions::tools_json)
      .def_rw("tool_choice", &ChatOptions::tool_choice)
      .def_rw("parallel_tool_calls", &ChatOptions::parallel_tool_calls)
      .def_rw("response_format_json", &ChatOptions::response_format_json);
  nb::class_<ChatCompletion>(m, "ChatCompletion")
      .def_ro("message", &ChatCompletion::message)
      .def_ro("finish_reason", &ChatCompletion::finish_reason)
      .def_ro("completion", &ChatCompletion::completion);
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "C++ core of deepinfer; use the package's own names instead";
  m.attr("__version__") = DEEPINFER_VERSION;
  // Kept alive by the module and by these two references.
  model_error = PyErr_NewExceptionWithDoc("deepinfer.ModelError",
                                          "A model or one of its files is missing, damaged or unsupported.",
                                          PyExc_RuntimeError,
                                          nullptr);
  resource_error = PyErr_NewExceptionWithDoc("deepinfer.ResourceError",
                                             "The work does not fit: memory, cache or context length.",
                                             PyExc_RuntimeError,
                                             nullptr);
  m.attr("ModelError") = nb::borrow(model_error);
  m.attr("ResourceError") = nb::borrow(resource_error);
  BindParams(m);
  BindOutputs(m);
  BindEngine(m);
  nb::class_<CancelToken>(m, "CancelToken").def(nb::init<>()).def("cancel", &CancelToken::Cancel);
  nb::class_<LLM>(m, "LLM")
      .def_static("load", &LoadLlm, nb::arg("options"), nb::arg("progress").none())
      .def("generate", &Generate, nb::arg("prompt_ids"), nb::arg("params"), nb::arg("callback").none(),
           nb::arg("cancel").none())
      .def("generate_batch", &GenerateBatch, nb::arg("prompt_ids"), nb::arg("params"), nb::arg("callback").none(),
           nb::arg("progress").none(), nb::arg("cancel").none())
      .def("chat", &Chat, nb::arg("messages"), nb::arg("params"), nb::arg("options"), nb::arg("callback").none(),
           nb::arg("cancel").none())
      .def("encode", [](const LLM& llm, const std::string& text) {
        nb::gil_scoped_release release;
        return llm.Encode(text);
      })
      .def("encode_chat", [](const LLM& llm, const std::vector<ChatMessage>& messages, const ChatOptions& options) {
        return Take(llm.EncodeChat(messages, options));
      })
      .def("decode", [](const LLM& llm, const std::vector<int32_t>& ids, bool skip_special_tokens) {
        const std::string text = llm.Decode(ids, skip_special_tokens);
        return ToStr(text);
      })
      .def_prop_ro("vocab_size", &LLM::vocab_size)
      .def_prop_ro("max_model_len", &LLM::max_model_len)
      .def_prop_ro("eos_token_id", &LLM::eos_token_id)
      .def_prop_ro("model_dir", &LLM::model_dir)
      .def_prop_ro("load_s", &LLM::load_s);
}

}  // namespace deepinfer
