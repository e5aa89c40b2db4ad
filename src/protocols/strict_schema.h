// SPDX-License-Identifier: Apache-2.0
//
// The strict form of a JSON schema (protocols.md 3.4): rebuilt from the keywords that strict mode keeps, in a fixed key order,
// with every property required and no further properties.
#pragma once

#include <string_view>

#include "core/status.h"
#include "protocols/api.h"

namespace deepinfer::protocols {

enum class StrictUse { kToolParameters, kJsonSchema };

// `schema` is valid JSON Schema already. Errors have the exact texts of the specification where it gives one.
Result<Json> RebuildStrict(const Json& schema, StrictUse use);

}  // namespace deepinfer::protocols
