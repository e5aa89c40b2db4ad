// SPDX-License-Identifier: Apache-2.0
#include "engine/step_trace.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace deepinfer::engine {

std::string ChromeTrace(std::span<const StepTiming> steps) {
  std::string json = R"({"displayTimeUnit":"ms","traceEvents":[)"
                     R"({"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"scheduler"}},)"
                     R"({"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"compute"}})";
  if (steps.empty()) return json + "]}";
  int64_t origin = steps[0].schedule_begin_ns;
  for (const StepTiming& step : steps) origin = std::min(origin, step.schedule_begin_ns);
  const auto add = [&](const char* what, int lane, const StepTiming& step, int64_t begin_ns, int64_t end_ns) {
    fmt::format_to(std::back_inserter(json),
                   R"(,{{"ph":"X","pid":1,"tid":{},"name":"{} {}","cat":"{}","ts":{:.3f},"dur":{:.3f},"args":{{"rows":{},"tokens":{}}}}})", lane,
                   what, step.number, step.kind == StepKind::kPrefill ? "prefill" : "decode",
                   static_cast<double>(begin_ns - origin) * 1e-3, static_cast<double>(end_ns - begin_ns) * 1e-3, step.num_rows,
                   step.num_tokens);
  };
  for (const StepTiming& step : steps) {
    add("plan", 1, step, step.schedule_begin_ns, step.schedule_end_ns);
    add("run", 2, step, step.run_begin_ns, step.run_end_ns);
    add("process", 1, step, step.process_begin_ns, step.process_end_ns);
  }
  return json + "]}";
}

}  // namespace deepinfer::engine
