// SPDX-License-Identifier: Apache-2.0
#include "core/dtypes.h"

namespace deepinfer {

int64_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBf16:
    case DType::kF16:
    case DType::kI16: return 2;
    case DType::kI64: return 8;
    default: return 1;
  }
}

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kBf16: return "BF16";
    case DType::kF16: return "F16";
    case DType::kF8E4M3: return "F8_E4M3";
    case DType::kF8E8M0: return "F8_E8M0";
    case DType::kI8: return "I8";
    case DType::kU8: return "U8";
    case DType::kI16: return "I16";
    case DType::kI32: return "I32";
    case DType::kI64: return "I64";
    case DType::kBool: return "BOOL";
  }
  return "?";
}

std::optional<DType> ParseDType(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    if (DTypeName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace deepinfer
