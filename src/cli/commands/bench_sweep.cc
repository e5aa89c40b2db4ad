// SPDX-License-Identifier: Apache-2.0
//
// bench sweep: bench throughput over all combinations of --batches, --inputs and --outputs, one record a line. A sweep that
// was interrupted goes on behind the records that --out has.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/bench_point.h"
#include "cli/commands/model_session.h"
#include "cli/input.h"
#include "cli/svg.h"
#include "core/escape.h"
#include "core/file.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kMaxRecordBytes = int64_t{1} << 28;

struct Point {
  int64_t batch = 1, input_tokens = 1, output_tokens = 1;
  auto operator<=>(const Point&) const = default;
};

Point PointOf(const Json& record) {
  return {record["batch"].get<int64_t>(), record["shape"]["input_tokens"].get<int64_t>(), record["shape"]["output_tokens"].get<int64_t>()};
}

// The records of an earlier run by their point; a line that was cut off is taken out of the file.
Status ReadRecords(const Invocation& invocation, std::map<Point, Json>& records) {
  const std::string& path = invocation.config.output.out;
  if (path.empty() || ::access(path.c_str(), F_OK) != 0) return Status::Ok();
  DI_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
  const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  DI_RETURN_IF_ERROR(ForEachLine(std::string_view(text).substr(0, whole), [&](std::string_view line, int64_t) -> Status {
    const Result<Json> json = ParseJson(line);
    const auto is_number = [&](const Json& object, const char* key) { return object.contains(key) && object[key].is_number_integer(); };
    if (!json.ok() || !json->is_object() || json->value("bench", "") != "sweep" || !is_number(*json, "batch") || !json->contains("shape") ||
        !(*json)["shape"].is_object() || !is_number((*json)["shape"], "input_tokens") || !is_number((*json)["shape"], "output_tokens")) {
      return InvalidArgument("this is no record of a sweep; name another file with --out, or remove it");
    }
    if (json->value("model", "") != invocation.config.model.model) {
      return InvalidArgument(fmt::format("this record is of model {}; name another file with --out", Escape(json->value("model", ""))));
    }
    const Json settings = SettingsOf(invocation), earlier = json->value("settings", Json::object());
    if (earlier != settings) {
      return InvalidArgument(fmt::format("this record was measured with the options {}, now they are {}; name another file with --out",
                                         Escape(DumpJson(earlier), 256), Escape(DumpJson(settings), 256)));
    }
    records[PointOf(*json)] = *json;
    return Status::Ok();
  }, Escape(path)));
  if (whole < text.size() && whole == 0) return InvalidArgument(fmt::format("{} holds no records of a sweep; name another file with --out", Escape(path)));
  if (whole < text.size()) return WriteFileAtomically(path, std::string_view(text).substr(0, whole));
  return Status::Ok();
}

Status AppendRecord(const std::string& path, const Json& record) {
  if (path.empty()) return Status::Ok();
  const std::string line = DumpJson(record) + "\n";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const bool is_written = fd >= 0 && ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (is_written) return Status::Ok();
  return ResourceExhausted(fmt::format("cannot write {}: {}; choose a place that can be written", Escape(path), std::strerror(error)));
}

std::string Plot(const std::string& model, const std::vector<Json>& records) {
  std::map<std::pair<int64_t, int64_t>, ChartSeries> series;
  for (const Json& record : records) {
    const Point point = PointOf(record);
    ChartSeries& line = series[{point.input_tokens, point.output_tokens}];
    line.name = fmt::format("{}+{} tokens", point.input_tokens, point.output_tokens);
    line.points.emplace_back(static_cast<double>(point.batch), record["out_tok_s"].get<double>());
  }
  std::vector<ChartSeries> lines;
  for (auto& [key, line] : series) {
    std::sort(line.points.begin(), line.points.end());
    lines.push_back(std::move(line));
  }
  return LineChart(fmt::format("{}: output tokens per second", model), "requests at once", "tokens/s", lines);
}

Status RunSweep(Invocation& invocation) {
  const Config& config = invocation.config;
  const BenchConfig& bench = config.bench;
  DI_RETURN_IF_ERROR(CheckPlotName(config.output.plot));
  if (bench.workload != "fixed") return InvalidArgument("a sweep takes its lengths from --inputs and --outputs; leave --workload out");
  const auto list = [](const std::vector<int64_t>& values, int64_t otherwise) { return values.empty() ? std::vector<int64_t>{otherwise} : values; };
  std::vector<Point> points;
  for (const int64_t output : list(bench.outputs, bench.output_tokens)) {
    for (const int64_t input : list(bench.inputs, bench.input_tokens)) {
      for (const int64_t batch : list(bench.batches, bench.batch)) points.push_back({batch, input, output});
    }
  }
  std::map<Point, Json> known;
  DI_RETURN_IF_ERROR(ReadRecords(invocation, known));
  StepRecorder recorder;
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false, Defaults::kProduction,
                                                       recorder.Installer()));
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, engine->async_engine());
  std::vector<LoadSpec> specs;
  for (const Point& point : points) {
    LoadSpec& spec = specs.emplace_back();
    spec.input_tokens = point.input_tokens;
    spec.output_tokens = point.output_tokens;
    spec.concurrency = point.batch;
    spec.num_requests = bench.requests > 0 ? bench.requests : 2 * point.batch;
    DI_RETURN_IF_ERROR(CheckFits(*async, spec));
    if (point.input_tokens + point.output_tokens > engine->model().max_model_len()) {
      return InvalidArgument(fmt::format("--inputs and --outputs have {} + {} tokens but the context holds {}; lower them", point.input_tokens,
                                         point.output_tokens, engine->model().max_model_len()));
    }
  }

  if (!config.output.json) {
    invocation.out.Line(fmt::format("{:>7} {:>8} {:>8} {:>14} {:>12} {:>12} {:>10}", "batch", "input", "output", "out tokens/s", "ttft ms",
                                    "per token", "waits %"));
  }
  std::vector<Json> records;
  Progress progress("bench sweep", {.quiet = config.log.quiet, .unit = ProgressUnit::kItems, .clock = nullptr, .write_line = {}});
  for (size_t i = 0; i < points.size(); ++i) {
    Json record;
    if (const auto it = known.find(points[i]); it != known.end()) {
      record = it->second;
    } else {
      RunRecord run("sweep", invocation, *engine);
      const Result<PointResult> point = MeasurePoint(invocation, *engine, *async, recorder, specs[i], run, nullptr);
      if (!point.ok()) {
        if (point.status().code() == StatusCode::kCancelled && !config.output.out.empty()) {
          std::fputs(fmt::format("interrupted after {} of {} points; run the same command again to go on\n", i, points.size()).c_str(), stderr);
        }
        return point.status();
      }
      record = PointRecord(invocation, run, specs[i], *point);
      DI_RETURN_IF_ERROR(AppendRecord(config.output.out, record));
    }
    if (config.output.json) {
      invocation.out.Line(DumpJson(record));
    } else {
      invocation.out.Line(fmt::format("{:>7} {:>8} {:>8} {:>14.1f} {:>12.2f} {:>12.3f} {:>10.2f}", points[i].batch, points[i].input_tokens,
                                      points[i].output_tokens, record["out_tok_s"].get<double>(), record["ttft_ms"]["p50"].get<double>(),
                                      record["tpot_ms"]["p50"].get<double>(), record["exposed_host_share"].get<double>() * 100));
    }
    invocation.out.Flush();
    DI_RETURN_IF_ERROR(invocation.out.Check());
    records.push_back(std::move(record));
    progress.Update(static_cast<int64_t>(i) + 1, static_cast<int64_t>(points.size()));
  }
  return WritePlot(invocation, [&] { return Plot(config.model.model, records); });
}

}  // namespace

Command BenchSweepCommand() {
  return {.name = "bench sweep",
          .summary = "bench throughput over lists of batch sizes and lengths",
          .usage = "",
          .min_args = 0,
          .max_args = 0,
          .run = RunSweep,
          .arg_choices = {},
          .details = "All combinations of --batches, --inputs and --outputs, each with --requests (twice the batch if not given), repeated.\n"
                     "--json prints one record a line; --out keeps them, and a sweep that was interrupted goes on behind what it has."};
}

}  // namespace deepinfer::cli
