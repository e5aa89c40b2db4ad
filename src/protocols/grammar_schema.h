// SPDX-License-Identifier: Apache-2.0
//
// The schema that a strict request's grammar is compiled from: the client's own, so that lengths, patterns and $defs bind,
// with every object closed and every property required as the strict form has it (protocols.md 3.4).
#pragma once

#include "core/json.h"

namespace deepinfer::protocols {

// `schema` has passed RebuildStrict. Keywords beside `type`, `anyOf` or `$ref` that a grammar would read instead of it (other
// combinations, conditions) are left out, as the strict form leaves them out.
Json ClosedSchema(const Json& schema);

}  // namespace deepinfer::protocols
