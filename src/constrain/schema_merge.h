// SPDX-License-Identifier: Apache-2.0
//
// One schema that says what two say together, for the keywords that can be intersected.
#pragma once

#include <optional>

#include "core/json.h"
#include "core/status.h"

namespace deepinfer::constrain {

// Both must hold. kInvalidArgument: nothing can satisfy both. nullopt: the two use keywords whose intersection has no form
// as a schema here (two patterns, anyOf beside something else, references).
Result<std::optional<Json>> MergeSchemas(const Json& a, const Json& b);

}  // namespace deepinfer::constrain
