// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_api.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "core/escape.h"
#include "core/file.h"
#include "core/json.h"

namespace deepinfer::hub {

namespace {

constexpr int kMaxRedirects = 8;
constexpr int64_t kMaxListBytes = 64 << 20;
constexpr size_t kMaxFiles = 100'000;
constexpr int64_t kMaxFileBytes = int64_t{1} << 44;
// Status::field of errors that a wait may mend.
constexpr std::string_view kRetryField = "retry";

bool IsHex(std::string_view text, size_t size) {
  return text.size() == size && std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// A name must not lead out of the folder it is written to.
bool IsSafePath(std::string_view path) {
  if (path.empty() || path.size() > 1024 || path.front() == '/' || path.back() == '/') return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') return false;
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    begin = end + 1;
  }
  return true;
}

std::string Text(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

int64_t Number(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number_unsigned() && it->get<uint64_t>() <= static_cast<uint64_t>(kMaxFileBytes) ? it->get<int64_t>() : -1;
}

std::string Unquoted(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

int64_t ParseSeconds(const std::string* text) {
  int64_t seconds = 0;
  if (text == nullptr || std::from_chars(text->data(), text->data() + text->size(), seconds).ec != std::errc()) return 0;
  return std::clamp<int64_t>(seconds, 0, 300);
}

// Of an answer that is neither a success nor a redirect.
Status StatusError(const net::HttpAnswer& answer, const HubAccess& access, const std::string& id, std::string_view what) {
  const std::string hub = access.endpoint.HostHeader();
  switch (answer.status) {
    case 401:
      return BadModel(fmt::format("{} of {} is not open to everybody or does not exist on {} (status 401); check the name, or give a token in HF_TOKEN", what, id, hub));
    case 403:
      return BadModel(fmt::format("{} of {} is restricted on {} (status 403); accept its terms there and give your token in HF_TOKEN", what, id, hub));
    case 404: return BadModel(fmt::format("{} of {} does not exist on {} (status 404); check the name and --revision", what, id, hub));
    default: break;
  }
  const std::string message = fmt::format("{} answered status {} for {} of {}", hub, answer.status, what, id);
  if (answer.status == 429 || answer.status == 408 || answer.status >= 500) {
    return Status(StatusCode::kUnavailable, message, fmt::format("{}{}", kRetryField, ParseSeconds(answer.Find("retry-after"))));
  }
  return Unavailable(message);
}

void AddToken(const HubAccess& access, const net::Url& url, net::HttpCall& call) {
  if (!access.token.empty() && url.SameOrigin(access.endpoint)) call.headers.emplace_back("Authorization", "Bearer " + access.token);
}

Result<net::Url> HubUrl(const HubAccess& access, const std::string& path) {
  std::string base = access.endpoint.Text();
  while (base.ends_with('/')) base.pop_back();
  return net::ParseUrl(base + path);
}

Result<HubFile> ParseFile(const Json& entry, const std::string& id) {
  HubFile file;
  if (!entry.is_object()) return BadModel(fmt::format("the hub's list of {} holds an entry that is no file", id));
  file.path = Text(entry, "rfilename");
  if (!IsSafePath(file.path)) {
    return BadModel(fmt::format("the hub's list of {} names a file \"{}\", which is no safe relative path; nothing was fetched", id, Escape(file.path, 100)));
  }
  file.num_bytes = Number(entry, "size");
  file.git_sha1 = Text(entry, "blobId");
  if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
    file.sha256 = Text(*lfs, "sha256");
    if (file.sha256.empty()) file.sha256 = Text(*lfs, "oid");
    if (const int64_t size = Number(*lfs, "size"); size >= 0) file.num_bytes = size;
    if (!IsHex(file.sha256, 64)) return BadModel(fmt::format("the hub's list of {} has no valid SHA-256 of {}", id, Escape(file.path, 100)));
  } else if (!IsHex(file.git_sha1, 40)) {
    return BadModel(fmt::format("the hub's list of {} has no valid hash of {}", id, Escape(file.path, 100)));
  }
  if (file.num_bytes < 0) return BadModel(fmt::format("the hub's list of {} has no valid size of {}", id, Escape(file.path, 100)));
  return file;
}

}  // namespace

Result<HubAccess> HubAccess::FromEnvironment(const Environment& environment) {
  HubAccess access;
  Result<net::Url> endpoint = net::ParseUrl(environment.GetNonEmpty("HF_ENDPOINT").value_or("https://huggingface.co"));
  if (!endpoint.ok()) return endpoint.status().WithContext("HF_ENDPOINT");
  access.endpoint = *std::move(endpoint);
  access.token = environment.GetNonEmpty("HF_TOKEN").value_or(environment.GetNonEmpty("HUGGING_FACE_HUB_TOKEN").value_or(""));
  if (access.token.empty()) {
    const std::string home = environment.GetNonEmpty("HOME").value_or("/root");
    const std::string file = environment.GetNonEmpty("HF_TOKEN_PATH").value_or(environment.GetNonEmpty("HF_HOME").value_or(home + "/.cache/huggingface") + "/token");
    if (Result<std::string> text = ReadFile(file, 4096); text.ok()) access.token = *std::move(text);
  }
  const auto is_blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  std::erase_if(access.token, is_blank);
  if (!std::all_of(access.token.begin(), access.token.end(), [](char c) { return c > ' ' && c < 0x7f; })) {
    return InvalidArgument("HF_TOKEN holds characters that no token has");
  }
  const std::string offline = environment.GetNonEmpty("HF_HUB_OFFLINE").value_or("0");
  access.is_offline = offline == "1" || offline == "true" || offline == "TRUE" || offline == "yes" || offline == "YES" || offline == "on" || offline == "ON";
  return access;
}

bool IsWorthARetry(const Status& status) {
  return status.code() == StatusCode::kDeadlineExceeded || (status.code() == StatusCode::kUnavailable && (status.field().empty() || status.field().starts_with(kRetryField)));
}

int64_t RetryAfterSeconds(const Status& status) {
  const std::string& field = status.field();
  if (!field.starts_with(kRetryField)) return 0;
  const std::string seconds = field.substr(kRetryField.size());
  return ParseSeconds(&seconds);
}

Result<HubModel> FetchHubModel(net::HttpClient& client, const HubAccess& access, const std::string& id, const std::string& revision) {
  net::HttpCall call;
  DI_ASSIGN_OR_RETURN(call.url, HubUrl(access, fmt::format("/api/models/{}/revision/{}?blobs=true", id, net::PercentEncode(revision, false))));
  net::HttpAnswer answer;
  for (int i = 0;; ++i) {
    call.headers = {{"Accept", "application/json"}};
    AddToken(access, call.url, call);
    DI_ASSIGN_OR_RETURN(answer, client.Send(call, kMaxListBytes));
    const std::string* const location = answer.Find("location");
    if (answer.status / 100 != 3 || location == nullptr) break;
    if (i == kMaxRedirects) return BadModel(fmt::format("{} redirects the list of {} without end", access.endpoint.HostHeader(), id));
    DI_ASSIGN_OR_RETURN(call.url, net::ResolveLocation(call.url, *location));
  }
  if (answer.status != 200) return StatusError(answer, access, id, fmt::format("revision {}", revision));
  Result<Json> body = ParseJson(answer.body);
  if (!body.ok() || !body->is_object()) return BadModel(fmt::format("{} is no hub: its list of {} is not a JSON object", access.endpoint.HostHeader(), id));
  HubModel model;
  model.commit = Text(*body, "sha");
  if (!IsHex(model.commit, 40)) return BadModel(fmt::format("the hub's list of {} names no commit", id));
  const auto siblings = body->find("siblings");
  if (siblings == body->end() || !siblings->is_array() || siblings->size() > kMaxFiles) return BadModel(fmt::format("the hub's list of {} has no files", id));
  for (const Json& entry : *siblings) {
    DI_ASSIGN_OR_RETURN(HubFile file, ParseFile(entry, id));
    model.files.push_back(std::move(file));
  }
  std::sort(model.files.begin(), model.files.end(), [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  const auto twice = std::adjacent_find(model.files.begin(), model.files.end(), [](const HubFile& a, const HubFile& b) { return a.path == b.path; });
  if (twice != model.files.end()) return BadModel(fmt::format("the hub's list of {} names {} twice", id, Escape(twice->path, 100)));
  return model;
}

Status FetchHubBytes(net::HttpClient& client, const HubAccess& access, const std::string& id, const std::string& commit, const HubFile& file, int64_t begin,
                     int64_t end, const std::function<Status(const net::HttpAnswer&)>& on_head, const std::function<Status(std::string_view)>& on_body) {
  net::HttpCall call;
  DI_ASSIGN_OR_RETURN(call.url, HubUrl(access, fmt::format("/{}/resolve/{}/{}", id, commit, net::PercentEncode(file.path, true))));
  const std::string range = fmt::format("bytes={}-{}", begin, end - 1);
  const std::string shown = Escape(file.path, 200);
  for (int i = 0; i <= kMaxRedirects; ++i) {
    call.headers = {{"Range", range}};
    AddToken(access, call.url, call);
    std::string location;
    const auto head = [&](const net::HttpAnswer& answer) -> Status {
      if (const std::string* const etag = answer.Find(answer.Find("x-linked-etag") != nullptr ? "x-linked-etag" : "etag")) {
        const std::string hash = Unquoted(*etag);
        const bool is_hash = IsHex(hash, 64) || IsHex(hash, 40);
        // A mirror may send other tags; a hash that is another one is another file.
        if (is_hash && hash.size() == file.blob_name().size() && call.url.SameOrigin(access.endpoint) && hash != file.blob_name()) {
          return BadModel(fmt::format("{} has another {} than its list says (hash {} instead of {})", access.endpoint.HostHeader(), shown, hash, file.blob_name()));
        }
      }
      if (answer.status / 100 == 3 && answer.Find("location") != nullptr) {
        location = *answer.Find("location");
        return Status::Ok();
      }
      if (answer.status == 416) {
        return BadModel(fmt::format("{} has fewer bytes of {} than the {} that its list says", access.endpoint.HostHeader(), shown, file.num_bytes));
      }
      if (answer.status != 200 && answer.status != 206) return StatusError(answer, access, id, shown);
      return on_head(answer);
    };
    const auto body = [&](std::string_view data) { return location.empty() ? on_body(data) : Status::Ok(); };
    Result<net::HttpAnswer> answer = client.Stream(call, head, body);
    if (!answer.ok()) return answer.status();
    if (location.empty()) return Status::Ok();
    DI_ASSIGN_OR_RETURN(call.url, net::ResolveLocation(call.url, location));
  }
  return BadModel(fmt::format("{} redirects {} without end", access.endpoint.HostHeader(), shown));
}

}  // namespace deepinfer::hub
