// SPDX-License-Identifier: Apache-2.0
//
// What a hub says of a model: the commit a revision stands for and its files with sizes and hashes. The hub is the one of
// HF_ENDPOINT (https://huggingface.co by default) or a mirror with the same two routes:
//   GET {endpoint}/api/models/{id}/revision/{revision}?blobs=true    the list
//   GET {endpoint}/{id}/resolve/{commit}/{path}                      a file, often by redirects
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config_env.h"
#include "core/status.h"
#include "net/http_client.h"

namespace deepinfer::hub {

struct HubFile {
  std::string path;    // relative, "/" between parts, no "." or ".." parts
  int64_t num_bytes = 0;
  std::string sha256;  // hex; empty for small files, which have their git hash only
  std::string git_sha1;  // hex, of "blob SIZE\0" and the bytes; may be empty
  // What the cache calls it: equal content, equal name.
  const std::string& blob_name() const { return sha256.empty() ? git_sha1 : sha256; }
};

struct HubModel {
  std::string commit;  // 40 hex digits
  std::vector<HubFile> files;
};

struct HubAccess {
  net::Url endpoint;
  std::string token;  // sent to the endpoint's own host only; never part of a message
  bool is_offline = false;

  // HF_ENDPOINT, HF_TOKEN or the file `token` of HF_HOME, HF_HUB_OFFLINE.
  static Result<HubAccess> FromEnvironment(const Environment& environment);
};

// One attempt. Errors: kBadModel (no such model or revision, no access, a list that makes no sense).
Result<HubModel> FetchHubModel(net::HttpClient& client, const HubAccess& access, const std::string& id, const std::string& revision);

// Bytes [begin, end) of a file, through at most eight redirects. `on_head` gets the final answer, 200 or 206.
Status FetchHubBytes(net::HttpClient& client, const HubAccess& access, const std::string& id, const std::string& commit,
                     const HubFile& file, int64_t begin, int64_t end, const std::function<Status(const net::HttpAnswer&)>& on_head,
                     const std::function<Status(std::string_view)>& on_body);

// Whether the same request may work a little later, and how long the hub asked to wait (0: it did not say).
bool IsWorthARetry(const Status& status);
int64_t RetryAfterSeconds(const Status& status);

}  // namespace deepinfer::hub
