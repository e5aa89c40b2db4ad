// SPDX-License-Identifier: Apache-2.0
#include "constrain/xgrammar_backend.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#if DEEPINFER_HAVE_XGRAMMAR
#include <xgrammar/xgrammar.h>
#endif

#include "constrain/regex_rewrite.h"
#include "constrain/schema_prepass.h"
#include "core/escape.h"
#include "core/log.h"

#if DEEPINFER_HAVE_XGRAMMAR

namespace deepinfer::constrain {
namespace {

// Warnings of the compilation that runs on this thread; null = nobody wants them.
thread_local std::vector<std::string>* t_warnings = nullptr;

}  // namespace
}  // namespace deepinfer::constrain

// The library is built with XGRAMMAR_LOG_CUSTOMIZE: these two take its messages, without time stamps and source lines.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) { throw std::runtime_error(message); }

void LogMessageImpl(const std::string&, int, int, const std::string& message) {
  if (deepinfer::constrain::t_warnings != nullptr) deepinfer::constrain::t_warnings->push_back(message);
}

}  // namespace xgrammar

namespace deepinfer::constrain {
namespace {

// Deeper nesting than any grammar within the limits has; the default could exhaust a thread's stack.
constexpr int kMaxRecursion = 2000;

// Calls fn and turns what it throws into a Status.
template <typename F>
auto Guarded(StatusCode code, F&& fn) -> Result<decltype(fn())> {
  std::string message;
  try {
    return fn();
  } catch (const std::exception& e) {
    message = e.what();
  } catch (...) {
    message = "unknown exception of the grammar library";
  }
  if (message.rfind("Check failed: (", 0) == 0) {  // an expression of the library's source comes first
    if (const size_t at = message.find(" is false: "); at != std::string::npos) message = message.substr(at + 11);
  }
  while (!message.empty() && (message.back() == '\n' || message.back() == ' ')) message.pop_back();
  return Status(code, Escape(message, 500), code == StatusCode::kInvalidArgument ? "so_args.schema" : "");
}

class XgMatcher : public GrammarMatcher {
 public:
  explicit XgMatcher(xgrammar::GrammarMatcher matcher, int vocab_size) : matcher_(std::move(matcher)), vocab_size_(vocab_size) {}

  Result<bool> Accept(int32_t token_id) override {
    return Guarded(StatusCode::kInternal, [&] {
      if (matcher_.IsTerminated() || token_id < 0 || token_id >= vocab_size_) return false;
      return matcher_.AcceptToken(token_id);
    });
  }
  Result<bool> AcceptText(std::string_view text) override {
    return Guarded(StatusCode::kInternal, [&] { return !matcher_.IsTerminated() && matcher_.AcceptString(std::string(text)); });
  }
  Result<bool> Fill(std::span<uint32_t> mask) override {
    int64_t words = MaskWords(vocab_size_);
    if (static_cast<int64_t>(mask.size()) < words) {
      return Internal(fmt::format("a mask row has {} words, it needs {}", mask.size(), words));
    }
    return Guarded(StatusCode::kInternal, [&] {
      DLTensor row{};
      row.data = mask.data();
      row.device = {kDLCPU, 0};
      row.ndim = 1;
      row.dtype = xgrammar::GetBitmaskDLType();
      row.shape = &words;
      return matcher_.FillNextTokenBitmask(&row);
    });
  }
  Status Rollback(int n) override {
    const auto result = Guarded(StatusCode::kInternal, [&] {
      matcher_.Rollback(n);
      return true;
    });
    return result.ok() ? Status::Ok() : result.status();
  }
  std::unique_ptr<GrammarMatcher> Fork() const override { return std::make_unique<XgMatcher>(matcher_.Fork(), vocab_size_); }
  bool IsCompleted() const override { return matcher_.IsCompleted(); }
  bool IsTerminated() const override { return matcher_.IsTerminated(); }
  std::vector<int32_t> ForcedTokens(int max) override {
    Result<std::vector<int32_t>> tokens = Guarded(StatusCode::kInternal, [&] {
      return matcher_.IsTerminated() ? std::vector<int32_t>() : matcher_.FindJumpForwardTokens();
    });
    if (!tokens.ok()) return {};
    if (tokens->size() > static_cast<size_t>(std::max(max, 0))) tokens->resize(static_cast<size_t>(std::max(max, 0)));
    return *std::move(tokens);
  }

 private:
  xgrammar::GrammarMatcher matcher_;
  int vocab_size_;
};

class XgCompiledGrammar : public CompiledGrammar {
 public:
  explicit XgCompiledGrammar(xgrammar::CompiledGrammar grammar)
      : grammar_(std::move(grammar)), bytes_(static_cast<int64_t>(grammar_.MemorySizeBytes())),
        vocab_size_(grammar_.GetTokenizerInfo().GetVocabSize()), stop_ids_(grammar_.GetTokenizerInfo().GetStopTokenIds()),
        first_(grammar_) {}

  Result<std::unique_ptr<GrammarMatcher>> NewMatcher() const override {
    return Guarded(StatusCode::kInternal, [&]() -> std::unique_ptr<GrammarMatcher> {
      return std::make_unique<XgMatcher>(first_.Fork(), vocab_size_);
    });
  }
  int64_t memory_bytes() const override { return bytes_; }
  int vocab_size() const override { return vocab_size_; }
  std::span<const int32_t> stop_ids() const override { return stop_ids_; }

 private:
  xgrammar::CompiledGrammar grammar_;
  int64_t bytes_;
  int vocab_size_;
  std::vector<int32_t> stop_ids_;
  xgrammar::GrammarMatcher first_;  // its start state is worked out here, not on the thread that wants a matcher
};

// The choices as an EBNF rule; every character is written by its code, so that none means anything.
Result<std::string> ChoiceGrammar(const std::string& text) {
  const Result<Json> list = ParseJson(text);
  if (!list.ok() || !list->is_array() || list->empty()) {
    return InvalidArgument("so_args.schema of a choice must be a JSON list of at least one string", "so_args.schema");
  }
  std::string out = "root ::= ";
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& choice = (*list)[i];
    if (!choice.is_string()) {
      return InvalidArgument(fmt::format("so_args.schema[{}] of a choice must be a string", i), "so_args.schema");
    }
    out += i == 0 ? "\"" : " | \"";
    const auto& bytes = choice.get_ref<const std::string&>();
    for (size_t at = 0; at < bytes.size();) {  // ParseJson has checked the UTF-8
      const auto lead = static_cast<unsigned char>(bytes[at]);
      const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
      uint32_t code = length == 1 ? lead : lead & (0xFFu >> (length + 1));
      for (size_t k = 1; k < length && at + k < bytes.size(); ++k) code = code << 6 | (static_cast<unsigned char>(bytes[at + k]) & 0x3F);
      const bool is_plain = length == 1 && ((lead >= '0' && lead <= '9') || (lead >= 'a' && lead <= 'z') || lead == ' ' ||
                                            (lead >= 'A' && lead <= 'Z'));
      out += is_plain ? std::string(1, static_cast<char>(lead)) : fmt::format("\\U{:08x}", code);
      at += length;
    }
    out += '"';
  }
  return out;
}

class XgBackend : public GrammarBackend {
 public:
  XgBackend(TokenizerView plain, TokenizerView tags, int num_threads) : num_threads_(std::max(num_threads, 1)) {
    plain_.view = std::move(plain);
    tags_.view = std::move(tags);
  }

  Result<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSpec& spec) override {
    std::vector<std::string> warnings;
    DI_ASSIGN_OR_RETURN(const std::string text, Prepare(spec, &warnings));
    Result<std::shared_ptr<const CompiledGrammar>> result = CompileText(spec, text, &warnings);
    if (!result.ok() && spec.kind == GrammarKind::kRegex && text != spec.text) {
      warnings.clear();
      result = CompileText(spec, spec.text, &warnings);  // positions in the message are those of the client's text
    }
    std::sort(warnings.begin(), warnings.end());
    warnings.erase(std::unique(warnings.begin(), warnings.end()), warnings.end());
    if (result.ok() && !warnings.empty()) {
      DI_LOG(warn, "structured output: {} grammar {:016x} does not enforce: {}", GrammarKindName(spec.kind), GrammarHash(spec),
             Escape(fmt::format("{}", fmt::join(warnings, "; ")), 1000));
    }
    return result;
  }
  int64_t CacheBytes() const override { return 0; }
  void Clear() override {}

 private:
  // One vocabulary; its compiler is made when it is first needed.
  struct Vocabulary {
    TokenizerView view;
    std::mutex mutex;
    std::optional<xgrammar::GrammarCompiler> compiler;
  };

  static Result<std::string> Prepare(const GrammarSpec& spec, std::vector<std::string>* warnings) {
    switch (spec.kind) {
      case GrammarKind::kJsonSchema: {
        DI_ASSIGN_OR_RETURN(PreparedText prepared, PrepareSchema(spec.text));
        *warnings = std::move(prepared.warnings);
        return std::move(prepared.text);
      }
      case GrammarKind::kStructuralTag: {
        DI_ASSIGN_OR_RETURN(PreparedText prepared, PrepareStructuralTag(spec.text));
        *warnings = std::move(prepared.warnings);
        return std::move(prepared.text);
      }
      case GrammarKind::kJsonObject: return std::string("{\"type\":\"object\"}");
      case GrammarKind::kRegex:
        if (std::string fault = FindRegexFault(spec.text); !fault.empty()) {
          return InvalidArgument(std::move(fault), "so_args.schema");
        }
        return ReduceNestedRepetition(spec.text);
      case GrammarKind::kChoice: return ChoiceGrammar(spec.text);
      case GrammarKind::kEbnf:
      case GrammarKind::kLark:
        if (spec.text.find("temperature") != std::string::npos) warnings->push_back("temperature of a rule");
        return spec.text;
    }
    return spec.text;
  }

  Result<std::shared_ptr<const CompiledGrammar>> CompileText(const GrammarSpec& spec, const std::string& text,
                                                             std::vector<std::string>* warnings) {
    Vocabulary& vocabulary = spec.kind == GrammarKind::kStructuralTag ? tags_ : plain_;
    t_warnings = warnings;
    Result<std::shared_ptr<const CompiledGrammar>> result =
        Guarded(StatusCode::kInvalidArgument, [&]() -> std::shared_ptr<const CompiledGrammar> {
          xgrammar::GrammarCompiler compiler = Compiler(&vocabulary);
          return std::make_shared<XgCompiledGrammar>(Compile(&compiler, spec, text));
        });
    t_warnings = nullptr;
    return result;
  }

  static xgrammar::CompiledGrammar Compile(xgrammar::GrammarCompiler* compiler, const GrammarSpec& spec, const std::string& text) {
    switch (spec.kind) {
      case GrammarKind::kRegex: return compiler->CompileRegex(text);
      case GrammarKind::kEbnf:
      case GrammarKind::kChoice: return compiler->CompileGrammar(text, "root");
      case GrammarKind::kLark: return compiler->CompileLark(text);
      case GrammarKind::kStructuralTag: return compiler->CompileStructuralTag(text);
      case GrammarKind::kJsonSchema:
      case GrammarKind::kJsonObject: break;
    }
    return compiler->CompileJSONSchema(text, spec.any_whitespace, std::nullopt, std::nullopt, spec.strict,
                                       spec.max_whitespace_cnt, spec.any_order);
  }

  xgrammar::GrammarCompiler Compiler(Vocabulary* vocabulary) {
    std::lock_guard lock(vocabulary->mutex);
    if (!vocabulary->compiler) {
      xgrammar::SetMaxRecursionDepth(kMaxRecursion);
      TokenizerView& view = vocabulary->view;
      const xgrammar::TokenizerInfo info(view.tokens, xgrammar::VocabType::RAW, view.vocab_size, view.stop_ids, false);
      // Its cache is off: CompileService has one with a limit in bytes.
      vocabulary->compiler.emplace(info, num_threads_, /*cache_enabled=*/false);
      view.tokens = {};
    }
    return *vocabulary->compiler;
  }

  Vocabulary plain_;
  Vocabulary tags_;
  int num_threads_;
};

}  // namespace

bool HasXgrammar() { return true; }

Result<std::shared_ptr<GrammarBackend>> MakeXgrammarBackend(TokenizerView plain, TokenizerView tags, int num_threads) {
  for (const TokenizerView* view : {&plain, &tags}) {
    if (view->vocab_size < 1 || static_cast<int>(view->tokens.size()) > view->vocab_size) {
      return Internal(fmt::format("a tokenizer view has {} tokens and a width of {}", view->tokens.size(), view->vocab_size));
    }
    if (view->stop_ids.empty()) return InvalidArgument("structured outputs need an end token, the vocabulary has none");
  }
  return std::shared_ptr<GrammarBackend>(std::make_shared<XgBackend>(std::move(plain), std::move(tags), num_threads));
}

}  // namespace deepinfer::constrain

#else

namespace deepinfer::constrain {

bool HasXgrammar() { return false; }

Result<std::shared_ptr<GrammarBackend>> MakeXgrammarBackend(TokenizerView, TokenizerView, int) {
  return Unimplemented(
      "this build has no structured outputs; run third_party/fetch.sh and build again with -DDEEPINFER_XGRAMMAR=ON");
}

}  // namespace deepinfer::constrain

#endif
