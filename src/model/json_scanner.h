// SPDX-License-Identifier: Apache-2.0
//
// A strict forward-only JSON reader for the two documents whose size is set by the checkpoint, not
// by us: safetensors headers and the shard index (96,085 names each way). It builds no tree, so
// memory is bounded by what the caller keeps, and it sees every key, so duplicates can be refused.
// The first error sticks; every later call fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"

namespace deepinfer::model {

class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : text_(text) {}

  // Skips white space and consumes `c` if it comes next.
  bool Consume(char c);
  // As Consume, but anything else is an error.
  bool Expect(char c);
  bool ReadString(std::string& out);
  // A non-negative integer without fraction or exponent that fits int64.
  bool ReadUint(int64_t& out);
  // Any value; objects and arrays may nest `max_depth` deep (0: a scalar).
  bool SkipValue(int max_depth);
  // Only white space is left.
  bool ExpectEnd();

  // Walks an object: `while (s.NextKey(first, key)) { read the value }`; the caller sets `first` to
  // true before the opening brace has been consumed. False at the end of the object or on an error
  // (told apart by ok()).
  bool NextKey(bool& first, std::string& key);
  // The same for an array; the caller reads one element after each true.
  bool NextElement(bool& first);

  bool ok() const { return error_.empty(); }
  size_t offset() const { return at_; }
  // Records an error at the current place unless there is one already; always false.
  bool Fail(std::string_view reason);
  // "invalid JSON at byte 17: ..."
  std::string ErrorText() const;

 private:
  void SkipSpace();
  bool ReadEscape(std::string& out);
  bool ReadHex4(uint32_t& out);

  std::string_view text_;
  size_t at_ = 0;
  size_t error_at_ = 0;
  std::string error_;
  std::string scratch_;
};

}  // namespace deepinfer::model
