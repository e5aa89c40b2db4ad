// SPDX-License-Identifier: Apache-2.0
//
// The place of a request in a distributed trace: W3C Trace Context, version 00. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::server {

struct TraceContext {
  uint64_t trace_high = 0, trace_low = 0;  // the trace; both 0 = none
  uint64_t parent_id = 0;                  // the caller's span; 0 = this request is the root
  uint64_t span_id = 0;                    // of the request itself
  bool is_sampled = false;

  bool is_set() const { return (trace_high | trace_low) != 0; }
  std::string TraceId() const;  // 32 hexadecimal digits
  // The header that names `span_id` as the parent.
  std::string Header() const;
};

std::string SpanIdText(uint64_t id);  // 16 hexadecimal digits

// "00-TRACE-PARENT-FLAGS"; a later version counts if it begins like 00. False if the header is malformed: then it is ignored.
bool ParseTraceparent(std::string_view header, TraceContext& context);

}  // namespace deepinfer::server
