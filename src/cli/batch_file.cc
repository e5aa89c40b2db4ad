// SPDX-License-Identifier: Apache-2.0
#include "cli/batch_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unordered_map>

#include <fmt/format.h>

#include "cli/input.h"
#include "core/escape.h"
#include "core/file.h"
#include "engine/prefix_key.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kMaxInputBytes = int64_t{4} << 30;
constexpr size_t kIdLetters = 24;

Status WriteError(const std::string& path, int error) {
  const char* remedy = error == ENOSPC || error == EDQUOT ? "free some space and run the same command again to go on"
                       : error == EFBIG                   ? "raise the file size limit (ulimit -f) and run the same command again"
                       : error == ENOENT                  ? "create its folder first"
                       : error == EISDIR                  ? "name a file"
                                                          : "choose a place that can be written";
  return ResourceExhausted(fmt::format("cannot write {}: {}; {}", Escape(path), std::strerror(error), remedy));
}

bool IsSameFile(const std::string& a, const struct stat& b) {
  struct stat st {};
  return ::stat(a.c_str(), &st) == 0 && st.st_dev == b.st_dev && st.st_ino == b.st_ino;
}

}  // namespace

// ---- input ----------------------------------------------------------------------------------------------------------------

Result<BatchInput> BatchInput::Open(const std::string& path) {
  if (path == "-") {
    DI_ASSIGN_OR_RETURN(std::string text, ReadStdin());
    return FromText(std::move(text), "stdin");
  }
  DI_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxInputBytes));
  return FromText(std::move(text), path);
}

Result<BatchInput> BatchInput::FromText(std::string text, std::string name) {
  BatchInput input;
  input.text_ = std::move(text);
  input.name_ = std::move(name);
  std::unordered_map<std::string, int64_t> seen;
  DI_RETURN_IF_ERROR(ForEachLine(input.text_, [&](std::string_view content, int64_t number) -> Status {
    Line& line = input.lines_.emplace_back();
    line.begin = static_cast<size_t>(content.data() - input.text_.data());
    line.size = content.size();
    line.number = number;
    // A line that is no JSON, or has no id, is an error of that line only.
    const Result<Json> json = ParseJson(content);
    if (!json.ok() || !json->is_object()) return Status::Ok();
    const auto id = json->find("custom_id");
    if (id == json->end() || !id->is_string()) return Status::Ok();
    line.custom_id = id->get<std::string>();
    line.has_custom_id = true;
    const auto [known, is_new] = seen.emplace(line.custom_id, number);
    if (is_new) return Status::Ok();
    return BadModel(fmt::format("the custom_id \"{}\" is that of line {} too; results are told apart by it: make it unique",
                                Escape(line.custom_id), known->second));
  }, Escape(input.name_)));
  if (input.lines_.empty()) return BadModel(fmt::format("{} holds no requests; give one JSON object a line", Escape(input.name_)));
  return input;
}

std::string BatchInput::id(size_t i) const {
  return "batch_req_" + engine::Sha256Of(text_of(i)).ToHex().substr(0, kIdLetters);
}

Json BatchInput::custom_id(size_t i) const { return lines_[i].has_custom_id ? Json(lines_[i].custom_id) : Json(nullptr); }

Result<BatchItem> BatchInput::Parse(size_t i) const {
  const auto fault = [&](std::string_view what) { return InvalidArgument(fmt::format("line {}: {}", lines_[i].number, what)); };
  Result<Json> json = ParseJson(text_of(i));
  if (!json.ok()) return fault(json.status().message());
  if (!json->is_object()) return fault("expected an object with custom_id, method, url and body");
  if (!lines_[i].has_custom_id) return fault("custom_id is missing; give a string");
  const auto text = [&](const char* key) -> std::string {
    const auto it = json->find(key);
    return it != json->end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  if (json->contains("method") && text("method") != "POST") return fault("method must be \"POST\"");
  BatchItem item;
  item.url = text("url");
  if (item.url.empty()) return fault("url is missing; give \"/v1/chat/completions\" or \"/v1/completions\"");
  const auto body = json->find("body");
  if (body == json->end() || !body->is_object()) return fault("body is missing; give the request as an object");
  item.body = std::move(*body);
  return item;
}

Json BatchLine(const BatchInput& input, size_t i) { return Json{{"id", input.id(i)}, {"custom_id", input.custom_id(i)}}; }

// ---- output ---------------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<BatchOutput>> BatchOutput::Open(const std::string& path, const std::string& input_path, const BatchInput& input,
                                                       Output& out) {
  std::unique_ptr<BatchOutput> output(new BatchOutput(path));
  if (path == "-") {
    output->stdout_ = &out;
    return output;
  }
  output->fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  // A pipe or a device cannot always be read.
  if (output->fd_ < 0 && errno == EACCES) output->fd_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (output->fd_ < 0) return WriteError(path, errno);
  struct stat st {};
  if (::fstat(output->fd_, &st) != 0) return WriteError(path, errno);
  if (!S_ISREG(st.st_mode)) return output;
  output->is_resumable_ = true;
  if (input_path != "-" && IsSameFile(input_path, st)) {
    return InvalidArgument(fmt::format("{} is both input and output; name another file for the results", Escape(path)));
  }
  if (::flock(output->fd_, LOCK_EX | LOCK_NB) != 0) {
    return ResourceExhausted(fmt::format("another run writes {}; wait for its end, or name another file", Escape(path)));
  }
  DI_RETURN_IF_ERROR(output->Continue(input));
  return output;
}

BatchOutput::~BatchOutput() {
  if (fd_ >= 0) ::close(fd_);
}

Status BatchOutput::Continue(const BatchInput& input) {
  DI_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path_));
  const std::string_view text(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size()));
  const auto foreign = [&](std::string_view what) {
    return InvalidArgument(fmt::format("{} holds something else than the results of {}: {}; name another output, or remove it",
                                       Escape(path_), Escape(input.name()), what));
  };
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string_view::npos; begin = end + 1, end = text.find('\n', begin), ++num_done_) {
    const size_t i = num_done_;
    if (i == input.size()) return foreign(fmt::format("it has more lines than there are requests ({})", input.size()));
    const Result<Json> json = ParseJson(text.substr(begin, end - begin));
    if (!json.ok() || !json->is_object()) return foreign(fmt::format("line {} is no result", i + 1));
    const auto custom_id = json->find("custom_id"), id = json->find("id");
    if (custom_id == json->end() || id == json->end()) return foreign(fmt::format("line {} is no result", i + 1));
    if (*custom_id != input.custom_id(i)) {
      return foreign(fmt::format("line {} has the custom_id {} where the request of line {} has {}", i + 1, Escape(DumpJson(*custom_id), 80),
                                 input.line_number(i), Escape(DumpJson(input.custom_id(i)), 80)));
    }
    if (*id != input.id(i)) return foreign(fmt::format("the request of line {} has changed since", input.line_number(i)));
  }
  // A line without an end was cut off while it was written.
  const std::string_view torn = text.substr(begin);
  if (torn.empty()) return Status::Ok();
  if (num_done_ == input.size()) return foreign(fmt::format("it goes on behind the last result ({})", input.size()));
  std::string start = DumpJson(BatchLine(input, num_done_));
  start.back() = ',';
  const size_t common = std::min(start.size(), torn.size());
  if (torn.substr(0, common) != std::string_view(start).substr(0, common)) return foreign(fmt::format("line {} is no result", num_done_ + 1));
  if (::ftruncate(fd_, static_cast<off_t>(begin)) != 0) return WriteError(path_, errno);
  return Status::Ok();
}

Status BatchOutput::Append(std::string_view line) {
  std::string bytes(line);
  bytes += '\n';
  if (stdout_ != nullptr) {
    stdout_->Write(bytes);
    stdout_->Flush();
    return stdout_->Check();
  }
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return WriteError(path_, errno);
    done += static_cast<size_t>(n);
  }
  return Status::Ok();
}

Status BatchOutput::Finish() {
  if (is_resumable_ && ::fsync(fd_) != 0) return WriteError(path_, errno);
  return Status::Ok();
}

}  // namespace deepinfer::cli
