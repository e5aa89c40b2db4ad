// SPDX-License-Identifier: Apache-2.0
//
// debug grammar: does a text fit a grammar, and if not, where does it leave it. Needs no model: the vocabulary is the bytes.
#include <string>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/input.h"
#include "constrain/compile_service.h"
#include "constrain/xgrammar_backend.h"
#include "core/file.h"
#include "core/json.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kMaxGrammarBytes = int64_t{16} << 20;

constrain::TokenizerView ByteView() {
  constrain::TokenizerView view;
  for (int byte = 0; byte < 256; ++byte) view.tokens.push_back(std::string(1, static_cast<char>(byte)));
  view.tokens.emplace_back();  // the end
  view.vocab_size = 257;
  view.stop_ids = {256};
  return view;
}

Status Run(Invocation& invocation) {
  const DebugConfig& debug = invocation.config.debug;
  if (debug.schema.empty()) return InvalidArgument("--schema is missing; it names the file with the grammar");
  constrain::GrammarSpec spec;
  for (const auto& [name, kind] : {std::pair{"json_schema", constrain::GrammarKind::kJsonSchema},
                                   std::pair{"regex", constrain::GrammarKind::kRegex},
                                   std::pair{"ebnf", constrain::GrammarKind::kEbnf},
                                   std::pair{"structural_tag", constrain::GrammarKind::kStructuralTag}}) {
    if (debug.kind == name) spec.kind = kind;
  }
  const Result<std::string> text = ReadFile(debug.schema, kMaxGrammarBytes);
  if (!text.ok()) return BadModel(text.status().message());
  spec.text = *text;
  // Editors end a file with a newline, which is part of no pattern.
  if (spec.kind == constrain::GrammarKind::kRegex && !spec.text.empty() && spec.text.back() == '\n') spec.text.pop_back();

  DI_ASSIGN_OR_RETURN(const std::string input, ReadStdin());
  constrain::CompileServiceOptions options;
  options.timeout_ms = invocation.config.grammar.xgrammar_timeout * 1000;
  constrain::CompileService service([] { return constrain::MakeXgrammarBackend(ByteView(), ByteView()); }, options);
  const auto grammar = service.Compile(spec);
  if (!grammar.ok()) {
    const bool is_fault_of_file = grammar.status().code() == StatusCode::kInvalidArgument;
    return is_fault_of_file ? BadModel(fmt::format("{}: {}", debug.schema, grammar.status().message())) : grammar.status();
  }
  DI_ASSIGN_OR_RETURN(const auto matcher, (*grammar)->NewMatcher());
  size_t position = 0;
  while (position < input.size()) {
    DI_ASSIGN_OR_RETURN(const bool accepted, matcher->Accept(static_cast<unsigned char>(input[position])));
    if (!accepted) break;
    ++position;
  }
  const bool accepts = position == input.size() && matcher->IsCompleted();
  invocation.out.Line(DumpJson(Json{{"accepts", accepts}, {"position", position}}));
  return invocation.out.Check();
}

}  // namespace

Command DebugGrammarCommand() {
  return {.name = "debug grammar",
          .summary = "does the text on stdin fit the grammar in --schema, as {\"accepts\": ..., \"position\": ...}",
          .usage = "",
          .run = Run,
          .arg_choices = {},
          .details = "position is the number of bytes that fit; the whole text and accepts false: it is not complete."};
}

}  // namespace deepinfer::cli
