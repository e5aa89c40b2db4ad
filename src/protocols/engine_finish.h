// SPDX-License-Identifier: Apache-2.0
//
// How the engine ended a sample -> what the client is told (protocols.md 3.7).
#pragma once

#include "core/status.h"
#include "deepinfer/output.h"
#include "protocols/output_stream.h"

namespace deepinfer::protocols {

// An error for ends that are no answer: its HTTP status and text are the client's.
Result<EngineFinish> EngineFinishOf(deepinfer::FinishReason reason);

}  // namespace deepinfer::protocols
