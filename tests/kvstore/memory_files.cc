// SPDX-License-Identifier: Apache-2.0
//
// The stores of these tests live in memory where the machine has such a file system: hundreds of them are opened, each
// flushes its files many times, and what a flush does is nothing that a living machine can show.
#include <unistd.h>

#include <cstdlib>

namespace {

const bool kIsSet = [] {
  if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 0);
  return true;
}();

}  // namespace
