// SPDX-License-Identifier: Apache-2.0
//
// The one custom tool of Responses: apply_patch. What a client says about it is replaced by the text that the model was trained
// with (protocols.md 6).
#pragma once

#include "protocols/tool_definition.h"

namespace deepinfer::protocols {

inline constexpr char kApplyPatchName[] = "apply_patch";

ToolDefinition ApplyPatchTool();

}  // namespace deepinfer::protocols
