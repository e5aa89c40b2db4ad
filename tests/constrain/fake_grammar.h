// SPDX-License-Identifier: Apache-2.0
//
// A grammar over token ids instead of text, for tests that need masks but no grammar library. The text lists positions
// separated by blanks; a position is "*" (any token that is no stop id) or ids separated by "|": "5|6 7 *". A last "..."
// repeats the last position for ever (complete at any time behind it). Behind the last position only stop ids are allowed.
// "fail" as the text does not compile, "dead" makes a matcher that allows nothing, "throw" one whose Accept is an error.
#pragma once

#include <atomic>
#include <charconv>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "constrain/grammar.h"

namespace deepinfer::constrain {

struct FakeGrammarText {
  std::vector<std::set<int32_t>> positions;  // an empty set = any
  bool repeats_last = false;
  bool is_dead = false;
  bool fails_in_accept = false;

  static Result<FakeGrammarText> Parse(const std::string& text) {
    FakeGrammarText out;
    if (text == "fail") return InvalidArgument("the fake grammar does not compile");
    if (text == "dead") out.is_dead = true;
    if (text == "throw") out.fails_in_accept = true;
    if (text == "dead" || text == "throw") return out;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      if (word == "...") {
        out.repeats_last = true;
        continue;
      }
      std::set<int32_t> ids;
      std::istringstream parts(word == "*" ? "" : word);
      for (std::string part; std::getline(parts, part, '|');) {
        int32_t id = -1;
        if (std::from_chars(part.data(), part.data() + part.size(), id).ec != std::errc()) {
          return InvalidArgument("fake grammar: bad position " + word);
        }
        ids.insert(id);
      }
      out.positions.push_back(std::move(ids));
    }
    if (out.positions.empty()) out.repeats_last = false;
    return out;
  }
};

class FakeMatcher : public GrammarMatcher {
 public:
  FakeMatcher(std::shared_ptr<const FakeGrammarText> text, int vocab_size, std::vector<int32_t> stop_ids,
              std::function<void()> on_step)
      : text_(std::move(text)), vocab_size_(vocab_size), stop_ids_(stop_ids.begin(), stop_ids.end()),
        on_step_(std::move(on_step)) {}

  Result<bool> Accept(int32_t token_id) override {
    if (on_step_) on_step_();
    if (text_->fails_in_accept) return Internal("the fake matcher fails");
    if (is_terminated_ || !Allows(token_id)) return false;
    ++num_accepted_;
    is_terminated_ = stop_ids_.count(token_id) != 0;
    return true;
  }
  Result<bool> AcceptText(std::string_view) override { return Unimplemented("the fake grammar knows no text"); }
  Result<bool> Fill(std::span<uint32_t> mask) override {
    if (on_step_) on_step_();
    if (is_terminated_) return Internal("fill behind the end");
    bool is_full = true;
    std::fill(mask.begin(), mask.end(), 0);
    for (int32_t t = 0; t < vocab_size_; ++t) {
      if (Allows(t)) {
        mask[static_cast<size_t>(t) >> 5] |= 1u << (t & 31);
      } else {
        is_full = false;
      }
    }
    return !is_full;
  }
  Status Rollback(int n) override {
    if (n < 0 || n > num_accepted_) return Internal("rollback beyond the start");
    num_accepted_ -= n;
    if (n > 0) is_terminated_ = false;
    return Status::Ok();
  }
  std::unique_ptr<GrammarMatcher> Fork() const override { return std::make_unique<FakeMatcher>(*this); }
  bool IsCompleted() const override {
    const int size = static_cast<int>(text_->positions.size());
    return !text_->is_dead && num_accepted_ >= size;
  }
  bool IsTerminated() const override { return is_terminated_; }
  std::vector<int32_t> ForcedTokens(int max) override {
    std::vector<int32_t> out;
    for (size_t at = static_cast<size_t>(num_accepted_); static_cast<int>(out.size()) < max; ++at) {
      if (is_terminated_ || at >= text_->positions.size() || text_->positions[at].size() != 1) break;
      out.push_back(*text_->positions[at].begin());
    }
    return out;
  }

 private:
  bool Allows(int32_t token_id) const {
    if (token_id < 0 || token_id >= vocab_size_ || text_->is_dead) return false;
    if (stop_ids_.count(token_id) != 0) return IsCompleted();
    if (text_->fails_in_accept) return true;
    size_t at = static_cast<size_t>(num_accepted_);
    if (at >= text_->positions.size()) {
      if (!text_->repeats_last) return false;
      at = text_->positions.size() - 1;
    }
    const std::set<int32_t>& ids = text_->positions[at];
    return ids.empty() || ids.count(token_id) != 0;
  }

  std::shared_ptr<const FakeGrammarText> text_;
  int vocab_size_;
  std::set<int32_t> stop_ids_;
  std::function<void()> on_step_;
  int num_accepted_ = 0;
  bool is_terminated_ = false;
};

class FakeCompiledGrammar : public CompiledGrammar {
 public:
  FakeCompiledGrammar(FakeGrammarText text, int vocab_size, std::vector<int32_t> stop_ids, int64_t bytes,
                      std::function<void()> on_step)
      : text_(std::make_shared<FakeGrammarText>(std::move(text))), vocab_size_(vocab_size), stop_ids_(std::move(stop_ids)),
        bytes_(bytes), on_step_(std::move(on_step)) {}
  Result<std::unique_ptr<GrammarMatcher>> NewMatcher() const override {
    return std::unique_ptr<GrammarMatcher>(std::make_unique<FakeMatcher>(text_, vocab_size_, stop_ids_, on_step_));
  }
  int64_t memory_bytes() const override { return bytes_; }
  int vocab_size() const override { return vocab_size_; }
  std::span<const int32_t> stop_ids() const override { return stop_ids_; }

 private:
  std::shared_ptr<const FakeGrammarText> text_;
  int vocab_size_;
  std::vector<int32_t> stop_ids_;
  int64_t bytes_;
  std::function<void()> on_step_;
};

class FakeGrammarBackend : public GrammarBackend {
 public:
  FakeGrammarBackend(int vocab_size, std::vector<int32_t> stop_ids)
      : vocab_size_(vocab_size), stop_ids_(std::move(stop_ids)) {}

  Result<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSpec& spec) override {
    ++num_compiles;
    {
      std::unique_lock lock(mutex_);
      ++num_waiting_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return is_open_; });
      --num_waiting_;
    }
    DI_ASSIGN_OR_RETURN(FakeGrammarText text, FakeGrammarText::Parse(spec.text));
    return std::shared_ptr<const CompiledGrammar>(
        std::make_shared<FakeCompiledGrammar>(std::move(text), vocab_size_, stop_ids_, bytes_per_grammar, on_step));
  }
  int64_t CacheBytes() const override { return 0; }
  void Clear() override {}

  // A closed gate holds every compilation until it is opened.
  void CloseGate() { SetGate(false); }
  void OpenGate() { SetGate(true); }
  void WaitForWaiting(int n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_waiting_ >= n; });
  }

  std::atomic<int> num_compiles = 0;
  int64_t bytes_per_grammar = 1000;
  std::function<void()> on_step;  // called by every Accept and Fill, e.g. to advance a FakeClock

 private:
  void SetGate(bool is_open) {
    std::lock_guard lock(mutex_);
    is_open_ = is_open;
    changed_.notify_all();
  }

  int vocab_size_;
  std::vector<int32_t> stop_ids_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
  int num_waiting_ = 0;
};

}  // namespace deepinfer::constrain
