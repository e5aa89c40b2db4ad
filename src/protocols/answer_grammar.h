// SPDX-License-Identifier: Apache-2.0
//
// From the constraint of a converted request (protocols.md 3.5) to the grammar that its answer is held to
// (structured-outputs.md 12).
#pragma once

#include <cstdint>
#include <optional>

#include "constrain/grammar.h"
#include "core/status.h"
#include "protocols/converted_request.h"

namespace deepinfer::protocols {

// None if the request has no constraint. `end_think_id`: of </think>; where the prompt ends in the model's thinking, the
// grammar starts behind it.
Result<std::optional<constrain::GrammarSpec>> AnswerGrammar(const ConvertedRequest& request, int32_t end_think_id);

}  // namespace deepinfer::protocols
