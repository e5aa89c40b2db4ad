// SPDX-License-Identifier: Apache-2.0
//
// The checks of the request fuzzers on every golden input and on inputs made from them: bytes changed, pieces cut out, doubled
// and exchanged.
#include <random>

#include "../fuzz/request_checks.h"
#include "protocols/golden_cases.h"

namespace deepinfer::protocols {
namespace {

std::string Mutate(std::string text, const std::string& other, std::mt19937& random) {
  const auto place = [&](const std::string& in) { return in.empty() ? 0 : random() % in.size(); };
  for (int edits = 1 + static_cast<int>(random() % 3); edits > 0 && !text.empty(); --edits) {
    const size_t at = place(text);
    const size_t n = 1 + random() % 24;
    switch (random() % 5) {
      case 0: text[at] = "\"{}[],:0-\\n\x80" [random() % 12]; break;
      case 1: text.erase(at, n); break;
      case 2: text.insert(at, text.substr(place(text), n)); break;
      case 3: text.insert(at, other.substr(place(other), n)); break;
      default: {  // a value of another type in place of one
        constexpr std::string_view kValues[] = {"null", "7", "-1", "1e300", "\"x\"", "[]", "{}", "true", "[{}]", "\"\""};
        const size_t colon = text.find(':', at);
        if (colon == std::string::npos) break;
        const size_t end = text.find_first_of(",}]", colon);
        if (end != std::string::npos) text.replace(colon + 1, end - colon - 1, kValues[random() % std::size(kValues)]);
        break;
      }
    }
  }
  return text;
}

class Mutations : public ::testing::TestWithParam<Api> {};

TEST_P(Mutations, AreRefusedOrAnswered) {
  std::mt19937 random(static_cast<unsigned>(GetParam()) + 1);
  std::vector<std::string> bodies;
  for (const Json& test_case : ReadJsonLines("protocols/" + std::string(ApiName(GetParam())) + "_convert.jsonl")) {
    const auto text = test_case.find("request_text");
    bodies.push_back(text != test_case.end() ? text->get<std::string>() : DumpJson(test_case["request"]));
  }
  for (const std::string& body : bodies) {
    CheckBody(GetParam(), body);
    for (int round = 0; round < 30; ++round) CheckBody(GetParam(), Mutate(body, bodies[random() % bodies.size()], random));
  }
}

INSTANTIATE_TEST_SUITE_P(Protocols, Mutations, ::testing::Values(Api::kChat, Api::kResponses, Api::kMessages),
                         [](const auto& api) { return std::string(ApiName(api.param)); });

}  // namespace
}  // namespace deepinfer::protocols
