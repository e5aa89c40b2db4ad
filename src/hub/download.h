// SPDX-License-Identifier: Apache-2.0
//
// Download: a model of the hub onto this machine. Files come in ranges over several connections, survive interruptions and
// are kept only when size and hash are those of the hub's list. Without `dir` they go to the hub cache, in the layout that
// other hub clients share: blobs by hash, snapshots of links, refs. `deepinfer-manifest.json` beside the files names the
// SHA-256 of each.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/config_env.h"
#include "core/status.h"

namespace deepinfer::hub {

struct DownloadOptions {
  std::string id;                 // "owner/name"
  std::string revision = "main";  // branch, tag or commit
  std::vector<std::string> include, exclude;  // patterns of fnmatch(3) on paths; no include = all
  std::string dir;                // empty = the hub cache
  int num_connections = 8;
  int max_retries = 8;            // of one range, without a byte of progress
  bool verify = false;            // hash what is there already, too
  std::string user_agent = "deepinfer";
  Environment environment;
  const std::atomic<bool>* is_cancelled = nullptr;
  std::function<void(int64_t done, int64_t total)> on_progress;  // any thread
};

struct DownloadReport {
  std::string dir;  // holds config.json
  std::string commit;
  int64_t num_files = 0, num_bytes = 0;
  int64_t num_fetched_bytes = 0;  // the rest was there
};

// Errors: kBadModel (no such model, damaged), kUnavailable (network), kResourceExhausted (disk), kCancelled, kInvalidArgument.
Result<DownloadReport> Download(const DownloadOptions& options);

inline constexpr char kManifestName[] = "deepinfer-manifest.json";

}  // namespace deepinfer::hub
