// SPDX-License-Identifier: Apache-2.0
//
// Exit codes of the program: 0 done, 1 the work failed, 2 wrong usage, 3 the model or an input file is missing, damaged or
// unsupported, 130 interrupted.
#pragma once

#include "core/status.h"

namespace deepinfer::cli {

inline int ExitCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return 0;
    case StatusCode::kInvalidArgument: return 2;
    case StatusCode::kBadModel: return 3;
    case StatusCode::kCancelled: return 130;
    default: return 1;
  }
}

}  // namespace deepinfer::cli
