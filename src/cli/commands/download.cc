// SPDX-License-Identifier: Apache-2.0
//
// download: a checkpoint from a hub to the hub cache or a folder.
#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/version.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/progress.h"
#include "core/signals.h"
#include "hub/download.h"

namespace deepinfer::cli {

namespace {

Status RunDownload(Invocation& invocation) {
  const Config& config = invocation.config;
  hub::DownloadOptions options;
  options.id = invocation.args[0];
  options.revision = config.model.revision;
  options.include = config.download.include;
  options.exclude = config.download.exclude;
  options.dir = config.download.dir;
  options.num_connections = static_cast<int>(config.download.connections);
  options.max_retries = static_cast<int>(config.download.max_retries);
  options.verify = config.inspect.verify;
  options.user_agent = "deepinfer/" + Version();
  options.environment = invocation.environment;
  // The handler may still run while the scope ends.
  static std::atomic<bool> is_cancelled;
  is_cancelled.store(false);
  options.is_cancelled = &is_cancelled;
  const InterruptScope interrupt([](void*) { is_cancelled.store(true); });
  Progress progress("downloading", {.quiet = config.log.quiet, .unit = ProgressUnit::kBytes, .clock = nullptr, .write_line = nullptr});
  options.on_progress = [&progress](int64_t done, int64_t total) { progress.Update(done, total); };
  const double begin_s = Clock::Steady().NowSeconds();
  Result<hub::DownloadReport> report = hub::Download(options);
  if (!report.ok()) return report.status();
  const double seconds = Clock::Steady().NowSeconds() - begin_s;
  if (config.output.json) {
    invocation.out.Line(DumpJson(Json{{"dir", report->dir},
                                      {"id", options.id},
                                      {"revision", options.revision},
                                      {"commit", report->commit},
                                      {"files", report->num_files},
                                      {"bytes", report->num_bytes},
                                      {"fetched_bytes", report->num_fetched_bytes},
                                      {"seconds", seconds}}));
    return Status::Ok();
  }
  invocation.out.Line(report->dir);
  return Status::Ok();
}

}  // namespace

Command DownloadCommand() {
  return {.name = "download",
          .summary = "fetch a checkpoint from a hub",
          .usage = "OWNER/NAME",
          .min_args = 1,
          .max_args = 1,
          .run = RunDownload,
          .arg_choices = {},
          .details =
              "Prints the folder that holds the files. Without --dir that is a snapshot in the hub cache, and --model OWNER/NAME finds it.\n"
              "An interrupted download goes on where it was. Every file is checked against the hash of the hub's list.\n"
              "HF_ENDPOINT names a mirror, HF_TOKEN a token, HF_HOME or HF_HUB_CACHE the cache; HF_HUB_OFFLINE=1 fetches nothing.\n"
              "https_proxy, http_proxy and no_proxy are honoured, SSL_CERT_FILE names further certificate authorities."};
}

}  // namespace deepinfer::cli
