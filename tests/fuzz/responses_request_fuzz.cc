// SPDX-License-Identifier: Apache-2.0
//
// Responses: conversion, rendering and response of any body (request_checks.h).
#include <cstdint>
#include <string_view>

#include "request_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  deepinfer::protocols::CheckBody(deepinfer::protocols::Api::kResponses, std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
