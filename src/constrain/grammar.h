// SPDX-License-Identifier: Apache-2.0
//
// What a constraint is made of: GrammarSpec (what a request asks for, checked), and the interface of whatever compiles and
// matches grammars: GrammarBackend -> CompiledGrammar -> GrammarMatcher. A compiled grammar is immutable and shared; a
// matcher belongs to one request and one thread at a time. Masks are rows of ceil(vocab_size / 32) words, bit 1 = allowed,
// token t = word t >> 5, bit t & 31.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/status.h"

namespace deepinfer::constrain {

enum class GrammarKind { kJsonSchema, kJsonObject, kRegex, kEbnf, kStructuralTag, kChoice, kLark };

std::string_view GrammarKindName(GrammarKind kind);  // the schema_type of so_args: "json", "json_object", "regex", ...

// so_args of a request, checked. kind, text and the schema options select the compiled grammar; triggers and bound belong to
// the request's Constraint.
struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text;              // schema, pattern, grammar, structural tag, or JSON list of strings
  bool strict = true;            // objects that declare properties are closed
  bool any_order = false;        // properties in any order
  bool any_whitespace = true;    // blanks between JSON tokens are free
  std::optional<int> max_whitespace_cnt;  // at most that many in a row; none = unlimited
  std::vector<int32_t> trigger_token_ids;   // the grammar starts behind this sequence of output tokens
  std::optional<int32_t> bound_token_id;    // generated while the trigger is pending: the trigger is forced from here on
  // Not empty: the request ends as "structured output failed" with this message instead of being refused (wrong types of
  // triggers or bound, unknown schema_type).
  std::string invalid;
};

// Checks so_args. Errors (kInvalidArgument, field "so_args.NAME") are the cases that a caller must be told at once: missing
// or mistyped schema, keys that do not exist. The others are in GrammarSpec::invalid.
Result<GrammarSpec> ParseSoArgs(const Json& so_args);
Result<GrammarSpec> ParseSoArgsText(std::string_view json_text);

// Equal keys = the same compiled grammar.
std::string GrammarKey(const GrammarSpec& spec);
// The key in 64 bits, for log lines: grammars come from clients and are never logged themselves.
uint64_t GrammarHash(const GrammarSpec& spec);

inline constexpr int64_t MaskWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // False: the grammar does not allow the token here and the state is unchanged. A stop id is accepted where the grammar is
  // complete and terminates the matcher; nothing is accepted after that.
  virtual Result<bool> Accept(int32_t token_id) = 0;
  // The same for text: all of it or nothing.
  virtual Result<bool> AcceptText(std::string_view text) = 0;
  // Writes the whole row (MaskWords words; bits at and above vocab_size are unspecified). False: every token is allowed and
  // the row is all ones. An error once terminated.
  virtual Result<bool> Fill(std::span<uint32_t> mask) = 0;
  // Takes back the last n accepted tokens.
  virtual Status Rollback(int n) = 0;
  virtual std::unique_ptr<GrammarMatcher> Fork() const = 0;  // same state, independent from here on
  virtual bool IsCompleted() const = 0;   // the text so far is a whole one: stop ids are allowed
  virtual bool IsTerminated() const = 0;  // a stop id has been accepted
  // The only possible continuation in tokens, at most max of them; empty if there is a choice. Changes nothing.
  virtual std::vector<int32_t> ForcedTokens(int max) = 0;
};

class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  virtual Result<std::unique_ptr<GrammarMatcher>> NewMatcher() const = 0;
  virtual int64_t memory_bytes() const = 0;
  virtual int vocab_size() const = 0;
  virtual std::span<const int32_t> stop_ids() const = 0;
};

// Compile may be called from several threads at once, takes as long as it takes and cannot be interrupted.
class GrammarBackend {
 public:
  virtual ~GrammarBackend() = default;
  virtual Result<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSpec& spec) = 0;
  virtual int64_t CacheBytes() const = 0;  // of the backend's own caches
  virtual void Clear() = 0;                // empties them
};

}  // namespace deepinfer::constrain
