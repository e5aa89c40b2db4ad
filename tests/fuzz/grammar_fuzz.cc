// SPDX-License-Identifier: Apache-2.0
//
// What reads grammars and so_args before the grammar library does. The first byte says what the rest is.
#include <cstdint>
#include <string>
#include <string_view>

#include "constrain/grammar.h"
#include "constrain/limits.h"
#include "constrain/regex_rewrite.h"
#include "constrain/schema_prepass.h"
#include "constrain/structural_tags.h"
#include "core/check.h"

using namespace deepinfer;
using namespace deepinfer::constrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  GrammarSpec spec;
  spec.text = text;
  switch (data[0]) {
    case 's': {
      const auto parsed = ParseSoArgs(ParseJson(text).ok() ? *ParseJson(text) : Json());
      if (!parsed.ok()) return 0;
      spec = *parsed;
      break;
    }
    case 'r':
      spec.kind = GrammarKind::kRegex;
      (void)FindRegexFault(text);
      DI_CHECK(ReduceNestedRepetition(text).size() <= text.size());
      break;
    case 'e': spec.kind = GrammarKind::kEbnf; break;
    case 't': spec.kind = GrammarKind::kStructuralTag; break;
    case 'T': {
      const auto tools = ToolSchemasFromJson(text);
      if (!tools.ok()) return 0;
      TagRequest request;
      request.tools = *tools;
      spec = StructuralTagSpec(request);
      break;
    }
    default: break;
  }
  (void)GrammarHash(spec);
  if (!CheckLimits(spec, {}).ok()) return 0;
  if (spec.kind == GrammarKind::kStructuralTag) (void)PrepareStructuralTag(spec.text).ok();
  if (spec.kind != GrammarKind::kJsonSchema) return 0;
  const auto prepared = PrepareSchema(spec.text);
  DI_CHECK(!prepared.ok() || ParseJson(prepared->text, 600).ok()) << prepared->text;
  return 0;
}
