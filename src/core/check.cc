// SPDX-License-Identifier: Apache-2.0
#include "core/check.h"

#include <cstdio>
#include <cstdlib>

namespace deepinfer {

CheckFailure::CheckFailure(const char* expression, const char* file, int line) {
  message_ << file << ":" << line << ": check failed: " << expression << " ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", message_.str().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace deepinfer
