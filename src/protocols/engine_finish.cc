// SPDX-License-Identifier: Apache-2.0
#include "protocols/engine_finish.h"

namespace deepinfer::protocols {

Result<EngineFinish> EngineFinishOf(deepinfer::FinishReason reason) {
  using Reason = deepinfer::FinishReason;
  switch (reason) {
    case Reason::kStop: return EngineFinish::kStop;
    case Reason::kLength: return EngineFinish::kLength;
    case Reason::kPromptLengthExceeded: return InvalidArgument("the prompt does not fit the model's context; shorten the messages");
    case Reason::kInvalidToken: return InvalidArgument("the prompt has a token id outside the model's vocabulary");
    case Reason::kTimeout: return Status(StatusCode::kDeadlineExceeded, "the request took longer than its time limit; try again later");
    case Reason::kAbort: return Unavailable("the request was ended by the server; try again");
    case Reason::kInsufficientResource: return Unavailable("the server has no cache memory left for the request; try again later");
    case Reason::kStructuredOutputFailed: return Internal("the answer could not be held to the grammar that the request asks for");
    case Reason::kInvalidLogits: return Internal("the model gave values that are not finite");
    case Reason::kInternalError:
    case Reason::kNone: break;
  }
  return Internal("the engine failed while it computed the answer");
}

}  // namespace deepinfer::protocols
