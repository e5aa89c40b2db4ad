// SPDX-License-Identifier: Apache-2.0
//
// The three arithmetics of the reference (names on the command line: release, fp32, plain).
#pragma once

#include <string_view>

#include "core/status.h"

namespace deepinfer::model {

enum class Numerics {
  kRelease,  // bf16 storage points and FP8/FP4 rounding: the published arithmetic ("qat16")
  kFp32,     // FP8/FP4 rounding of activations and keys, float32 otherwise ("qat32")
  kPlain,    // no activation rounding at all
};

inline bool RoundsToBf16(Numerics n) { return n == Numerics::kRelease; }
inline bool QuantizesActivations(Numerics n) { return n != Numerics::kPlain; }

Result<Numerics> ParseNumerics(std::string_view name);
std::string_view NumericsName(Numerics numerics);

}  // namespace deepinfer::model
