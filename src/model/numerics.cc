// SPDX-License-Identifier: Apache-2.0
#include "model/numerics.h"

#include <fmt/format.h>

namespace deepinfer::model {

Result<Numerics> ParseNumerics(std::string_view name) {
  if (name == "release") return Numerics::kRelease;
  if (name == "fp32") return Numerics::kFp32;
  if (name == "plain") return Numerics::kPlain;
  return InvalidArgument(fmt::format("numerics is \"{}\"; use release, fp32 or plain", name), "numerics");
}

std::string_view NumericsName(Numerics numerics) {
  switch (numerics) {
    case Numerics::kRelease: return "release";
    case Numerics::kFp32: return "fp32";
    case Numerics::kPlain: return "plain";
  }
  return "unknown";
}

}  // namespace deepinfer::model
