// SPDX-License-Identifier: Apache-2.0
//
// constrain_cases json|regex COUNT SEED: texts that random logits write under random JSON schemas, or under the table of
// regexes, over the released vocabulary; one JSON line each. check_cases.py holds them against independent validators.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "constrain/cases/regex_table.h"
#include "constrain/grammar_fixture.h"
#include "constrain/random_schema.h"
#include "constrain/random_text.h"
#include "core/log.h"

namespace deepinfer::constrain {
namespace {

bool WriteOne(RandomWriter* writer, const GrammarSpec& spec, const char* key, const Json& value) {
  const auto grammar = ReleasedBackend().Compile(spec);
  std::string problem;
  std::optional<std::string> text;
  if (grammar.ok()) {
    const auto matcher = (*grammar)->NewMatcher().value();
    text = writer->Write(matcher.get(), &problem);
  } else {
    problem = grammar.status().ToString();
  }
  Json line;
  line[key] = value;
  if (text) {
    line["text"] = *text;
  } else {
    line["problem"] = problem;
  }
  std::printf("%s\n", DumpJson(line).c_str());
  return text.has_value();
}

int Main(int argc, char** argv) {
  if (argc != 4 || !InitLogging("error", LogFormat::kText).ok()) return 2;  // results only on stdout
  const bool is_json = std::string(argv[1]) == "json";
  const int count = std::atoi(argv[2]);
  const auto seed = static_cast<uint64_t>(std::atoll(argv[3]));
  const TokenizerView view = MakeTokenizerView(ReleasedTokenizer(), ViewKind::kPlain, kReleasedVocab);
  RandomWriter writer(view, seed);
  RandomSchema schemas(seed);
  bool ok = true;
  for (int i = 0; i < count; ++i) {
    if (is_json) {
      const Json schema = schemas.Make();
      GrammarSpec spec = Spec(GrammarKind::kJsonSchema, DumpJson(schema));
      if (i % 2 == 0) spec.max_whitespace_cnt = 2;
      if (i % 5 == 0) spec.any_whitespace = false;
      if (i % 7 == 0) spec.strict = false;
      ok &= WriteOne(&writer, spec, "schema", schema);
    } else {
      for (const RegexCase& regex : kRegexTable) {
        Json value = {{"pattern", regex.pattern}, {"python", regex.python == nullptr ? regex.pattern : regex.python}};
        ok &= WriteOne(&writer, Spec(GrammarKind::kRegex, regex.pattern), "regex", value);
      }
    }
  }
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace deepinfer::constrain

int main(int argc, char** argv) { return deepinfer::constrain::Main(argc, argv); }
