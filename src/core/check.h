// SPDX-License-Identifier: Apache-2.0
//
// DI_CHECK(cond) << context: a broken invariant of our own code. Prints the expression, the context and the place, then
// aborts. Never used for input that a user or a client controls; those get a Status. DI_DCHECK costs nothing in release.
#pragma once

#include <sstream>

namespace deepinfer {

class CheckFailure {
 public:
  CheckFailure(const char* expression, const char* file, int line);
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure();

  template <typename T>
  CheckFailure& operator<<(const T& value) {
    message_ << value;
    return *this;
  }

 private:
  std::ostringstream message_;
};

}  // namespace deepinfer

#define DI_CHECK(cond)                                                       \
  if (__builtin_expect(static_cast<bool>(cond), 1)) {                        \
  } else                                                                     \
    ::deepinfer::CheckFailure(#cond, __FILE__, __LINE__)

#ifdef NDEBUG
#define DI_DCHECK(cond) DI_CHECK(true || (cond))
#else
#define DI_DCHECK(cond) DI_CHECK(cond)
#endif
