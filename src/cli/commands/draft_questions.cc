// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/draft_questions.h"

#include <array>
#include <string_view>

#include <fmt/format.h>

#include "core/json.h"
#include "protocols/convert_request.h"
#include "text/prompt_renderer.h"

namespace deepinfer::cli {
namespace {

// What even a small model answers well, in lengths from a word to a story. {} is filled with a name.
constexpr std::array<std::string_view, 12> kQuestions = {
    "Tell me a story about a cat named {}.",
    "What is the capital of France?",
    "Count from 1 to 20.",
    "Write a Python function that adds two numbers.",
    "Tell me a story about a rabbit named {}.",
    "Extract name, age, city as JSON: {} is 84 years old and lives in Lima.",
    "Repeat exactly: red fox planet window green lamp river stone",
    "What is the chemical symbol of gold?",
    "Tell me a story about a fox named {}.",
    "Write a C++ function that adds two integers.",
    "Spell the word planet.",
    "My name is {}. What is my name?",
};
constexpr std::array<std::string_view, 7> kNames = {"Nora", "Max", "Uma", "Ivan", "Elif", "Omar", "Quinn"};

}  // namespace

Result<std::vector<std::vector<int32_t>>> DraftQuestions(const engine::Engine& engine, int64_t count) {
  protocols::ConvertOptions convert;
  DI_ASSIGN_OR_RETURN(convert.tokens, text::PromptTokens::FromTokenizer(engine.tokenizer()));
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i);
    Json body;
    body["model"] = convert.served_models.front();
    body["thinking"] = {{"type", "disabled"}};
    body["messages"] = Json::array();
    body["messages"].push_back(
        {{"role", "user"}, {"content", fmt::format(fmt::runtime(kQuestions[at % kQuestions.size()]), kNames[at / 2 % kNames.size()])}});
    DI_ASSIGN_OR_RETURN(const protocols::ConvertedRequest request, protocols::ConvertParsedRequest(protocols::Api::kChat, body, convert));
    DI_ASSIGN_OR_RETURN(prompts.emplace_back(), engine.tokenizer().EncodePrompt(request.prompt.text, request.prompt.special_ranges));
  }
  return prompts;
}

}  // namespace deepinfer::cli
