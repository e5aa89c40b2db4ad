// SPDX-License-Identifier: Apache-2.0
//
// Structured outputs over the released vocabulary: mask rows along texts that the grammars allow, compilation, and what a
// request pays when its grammar is cached. Times are processor time of the thread, so a busy machine shows in the caches
// only.
#include <algorithm>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "constrain/compile_service.h"
#include "constrain/constraint.h"
#include "constrain/structural_tags.h"
#include "constrain/xgrammar_backend.h"
#include "core/check.h"

namespace deepinfer::constrain {
namespace {

constexpr int kVocab = 129280;

const text::Tokenizer& Tokenizer() {
  static const auto tokenizer = text::Tokenizer::Load(DEEPINFER_SOURCE_DIR "/tests/golden/tokenizer");
  return *tokenizer.value();
}
Result<std::shared_ptr<GrammarBackend>> MakeBackend() {
  return MakeXgrammarBackend(MakeTokenizerView(Tokenizer(), ViewKind::kPlain, kVocab),
                             MakeTokenizerView(Tokenizer(), ViewKind::kTags, kVocab));
}
GrammarBackend& Backend() {
  static const auto backend = MakeBackend();
  return *backend.value();
}

struct Case {
  const char* name;
  GrammarSpec spec;
  std::string text;
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = [] {
    const std::string person =
        R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},"email":{"type":"string",)"
        R"("format":"email"},"tags":{"type":"array","items":{"type":"string"}},"address":{"type":"object","properties":)"
        R"({"street":{"type":"string","maxLength":60},"zip":{"type":"string","pattern":"^[0-9]{5}$"}},"required":["street","zip"]}},)"
        R"("required":["name","age","email","tags","address"]})";
    const std::string answer =
        R"({"name": "Ada Lovelace, Countess", "age": 36, "email": "ada@example.org", "tags": ["mathematics", "first program"], )"
        R"("address": {"street": "12 St James's Square, London", "zip": "12345"}})";
    TagRequest tools;
    tools.tools = ToolSchemasFromJson(R"([{"function":{"name":"weather","parameters":{"type":"object","properties":)"
                                      R"({"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}}])")
                      .value();
    tools.is_thinking = true;
    const std::string call =
        "The user wants the weather in Berlin; I call the tool.</think>Let me look that up.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke "
        "name=\"weather\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">Berlin, Mitte</｜DSML｜ parameter>\n<｜DSML｜ parameter "
        "name=\"days\" string=\"false\">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    GrammarSpec regex = RegexSpec("(https?|ftp)://[a-z]+(\\.[a-z]+)+(/[a-zA-Z0-9_-]*)*", {});
    GrammarSpec ebnf;
    ebnf.kind = GrammarKind::kEbnf;
    ebnf.text = "root ::= term ((\"+\" | \"-\" | \"*\") term)*\nterm ::= [0-9]+ | \"(\" root \")\"";
    return std::vector<Case>{{"schema", JsonSpec(person, {}), answer},
                             {"any_object", JsonSpec("", {}), answer},
                             {"tool_call", StructuralTagSpec(tools), call},
                             {"regex", regex, "https://www.example.org/docs/structured-outputs/index_42"},
                             {"ebnf", ebnf, "(12+345)*(6-(78+9))-1024"}};
  }();
  return cases;
}

std::shared_ptr<const CompiledGrammar> Grammar(const Case& c) { return Backend().Compile(c.spec).value(); }

void Mask(benchmark::State& state) {
  const Case& c = Cases()[static_cast<size_t>(state.range(0))];
  const std::vector<int32_t> ids = Tokenizer().EncodeFull(c.text);
  const auto grammar = Grammar(c);
  std::vector<uint32_t> row(MaskWords(kVocab));
  std::vector<double> us;
  for (auto _ : state) {
    Constraint constraint(c.spec, grammar, {});
    for (const int32_t id : ids) {
      constraint.BeginStep();
      const int64_t start = ThreadCpuClock().NowNs();
      DI_CHECK(constraint.Fill(row).ok());
      us.push_back(static_cast<double>(ThreadCpuClock().NowNs() - start) * 1e-3);
      DI_CHECK(*constraint.Accept(id)) << c.name << " token " << id;
    }
  }
  std::sort(us.begin(), us.end());
  double sum = 0;
  for (const double x : us) sum += x;
  state.counters["mean_us"] = sum / static_cast<double>(us.size());
  state.counters["p50_us"] = us[us.size() / 2];
  state.counters["p99_us"] = us[us.size() * 99 / 100];
  state.counters["rows"] = static_cast<double>(us.size());
  state.SetLabel(c.name);
}
BENCHMARK(Mask)->DenseRange(0, 4)->Iterations(200)->Unit(benchmark::kMillisecond);

// Five drafts that fit, taken back and accepted again: the host's work of a speculative step besides the masks.
void RollbackFive(benchmark::State& state) {
  const Case& c = Cases()[0];
  const std::vector<int32_t> ids = Tokenizer().EncodeFull(c.text);
  ConstraintOptions options;
  options.num_drafts = 5;
  options.total_budget_ns = int64_t{1} << 60;
  Constraint constraint(c.spec, Grammar(c), options);
  for (size_t i = 0; i < 5; ++i) DI_CHECK(*constraint.Accept(ids[i]));
  for (auto _ : state) {
    constraint.BeginStep();
    DI_CHECK(constraint.Rollback(5).ok());
    for (size_t i = 0; i < 5; ++i) DI_CHECK(*constraint.Accept(ids[i]));
  }
}
BENCHMARK(RollbackFive)->Unit(benchmark::kMicrosecond);

void CompileCold(benchmark::State& state) {
  const Case& c = Cases()[static_cast<size_t>(state.range(0))];
  int64_t bytes = 0;
  for (auto _ : state) bytes = Grammar(c)->memory_bytes();
  state.counters["KiB"] = static_cast<double>(bytes) / 1024;
  state.SetLabel(c.name);
}
BENCHMARK(CompileCold)->DenseRange(0, 4)->Unit(benchmark::kMillisecond);

// From a request with a known grammar to the mask of its first token.
void CachedFirstMask(benchmark::State& state) {
  const Case& c = Cases()[static_cast<size_t>(state.range(0))];
  CompileService service(MakeBackend, {});
  DI_CHECK(service.Compile(c.spec).ok());
  std::vector<uint32_t> row(MaskWords(kVocab));
  for (auto _ : state) {
    const auto ticket = service.Submit(c.spec);
    DI_CHECK(ticket->is_done());
    Constraint constraint(c.spec, ticket->result().value(), {});
    DI_CHECK(constraint.Fill(row).ok());
  }
  state.SetLabel(c.name);
}
BENCHMARK(CachedFirstMask)->DenseRange(0, 4)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace deepinfer::constrain

int main(int argc, char** argv) {
  if (!deepinfer::constrain::HasXgrammar()) {
    std::fprintf(stderr, "this build has no structured outputs (DEEPINFER_XGRAMMAR)\n");
    return 1;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
