// SPDX-License-Identifier: Apache-2.0
//
// Is a JSON value a valid JSON Schema? Checks it against the meta-schema of its draft (4, 6, 7, 2019-09, 2020-12; the last when
// `$schema` is absent) and that every reference resolves inside the document. Keywords that the draft does not know pass.
#pragma once

#include <string>

#include "core/status.h"
#include "protocols/api.h"

namespace deepinfer::protocols {

// The message is the E of protocols.md 3.7, without a prefix: "-1 is less than the minimum of 0".
Status CheckJsonSchema(const Json& schema);

}  // namespace deepinfer::protocols
