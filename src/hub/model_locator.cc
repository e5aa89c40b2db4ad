// SPDX-License-Identifier: Apache-2.0
#include "hub/model_locator.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include <dlfcn.h>
#include <fmt/format.h>

#include "core/escape.h"
#include "core/file.h"

namespace deepinfer::hub {

namespace fs = std::filesystem;

namespace {

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool IsDirectory(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// Of the file that holds this function: the program, or the Python module.
std::string OwnBinaryDir() {
  std::error_code error;
  Dl_info info{};
  fs::path file;
  if (::dladdr(reinterpret_cast<const void*>(&OwnBinaryDir), &info) != 0 && info.dli_fname != nullptr) file = info.dli_fname;
  // A program names itself as it was called, which need not be a path.
  if (file.extension() != ".so") {
    const fs::path self = fs::read_symlink("/proc/self/exe", error);
    if (!error) file = self;
  }
  const fs::path real = fs::canonical(file, error);
  return (error ? file : real).parent_path().string();
}

bool IsNamePart(std::string_view part) {
  if (part.empty() || part.size() > 96 || part.front() == '.' || part.front() == '-') return false;
  if (part.find("..") != std::string_view::npos || part.find("--") != std::string_view::npos) return false;
  return std::all_of(part.begin(), part.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  });
}

bool IsRevision(std::string_view revision) {
  return !revision.empty() && revision.size() <= 256 && revision.front() != '/' && revision.find("..") == std::string_view::npos &&
         std::all_of(revision.begin(), revision.end(), [](char c) { return c > ' ' && c < 0x7f && c != '\\'; });
}

// The snapshot directory of a revision; empty if it is not cached.
fs::path FindSnapshot(const fs::path& repository, const std::string& revision) {
  const fs::path snapshots = repository / "snapshots";
  if (const Result<std::string> ref = ReadFile((repository / "refs" / revision).string(), 4096); ref.ok()) {
    std::string commit = *ref;
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0) commit.pop_back();
    if (IsRevision(commit) && IsDirectory(snapshots / commit)) return snapshots / commit;
    return {};
  }
  if (IsDirectory(snapshots / revision)) return snapshots / revision;
  // A commit given by its first letters.
  fs::path match;
  std::error_code error;
  int num_matches = 0;
  for (fs::directory_iterator it(snapshots, error), end; !error && it != end; it.increment(error)) {
    if (revision.size() < 7 || !it->path().filename().string().starts_with(revision)) continue;
    match = it->path();
    ++num_matches;
  }
  return num_matches == 1 ? match : fs::path();
}

Result<std::string> FindInHubCache(const std::string& id, const LocateOptions& options) {
  if (!IsRevision(options.revision)) {
    return InvalidArgument(fmt::format("revision \"{}\" is no branch, tag or commit", Escape(options.revision, 64)));
  }
  const std::string download = options.revision == "main" ? fmt::format("deepinfer download {}", id)
                                                          : fmt::format("deepinfer download {} --revision {}", id, options.revision);
  const fs::path cache = HubCacheDir(options.environment);
  std::string folder = "models--" + id;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path repository = cache / folder;
  if (!IsDirectory(repository)) {
    return BadModel(fmt::format("model {} is neither a directory nor in the hub cache {}; fetch it with: {}", id,
                                Escape(cache.string()), download));
  }
  const fs::path snapshot = FindSnapshot(repository, options.revision);
  if (snapshot.empty()) {
    return BadModel(fmt::format("the hub cache {} has model {} but not its revision {}; fetch it with: {}", Escape(cache.string()), id,
                                options.revision, download));
  }
  // exists() follows links: a snapshot whose blobs are gone is as good as none.
  if (!Exists(snapshot / "config.json")) {
    return BadModel(fmt::format("{} is incomplete: config.json is missing; fetch the model again with: {}", Escape(snapshot.string()),
                                download));
  }
  return snapshot.string();
}

}  // namespace

bool IsHubId(const std::string& model) {
  const size_t slash = model.find('/');
  if (slash == std::string::npos || model.find('/', slash + 1) != std::string::npos) return false;
  return IsNamePart(std::string_view(model).substr(0, slash)) && IsNamePart(std::string_view(model).substr(slash + 1));
}

std::string HubCacheDir(const Environment& environment) {
  const auto expand = [&](std::string path) {
    if (path.starts_with("~/")) path = environment.GetNonEmpty("HOME").value_or("/root") + path.substr(1);
    return path;
  };
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto value = environment.GetNonEmpty(name)) return expand(*value);
  }
  if (const auto value = environment.GetNonEmpty("HF_HOME")) return expand(*value) + "/hub";
  if (const auto value = environment.GetNonEmpty("XDG_CACHE_HOME")) return expand(*value) + "/huggingface/hub";
  return environment.GetNonEmpty("HOME").value_or("/root") + "/.cache/huggingface/hub";
}

std::vector<std::string> DemoCandidates(const std::string& binary_dir) {
  const fs::path dir(binary_dir);
  return {
      (dir / "models/demo").string(),                                    // build tree; the Python package
      (dir.parent_path() / "share/deepinfer/models/demo").string(),      // PREFIX/bin after an install, the tarball
      (dir / "share/deepinfer/models/demo").string(),                    // a wheel's data
      (dir.parent_path() / "models/demo").string(),                      // build directory inside the source tree
      (dir.parent_path().parent_path() / "models/demo").string(),        // build/bench, build/tests
      (dir.parent_path().parent_path().parent_path() / "models/demo").string(),
  };
}

Result<std::string> ResolveModelDir(const std::string& model, const LocateOptions& options) {
  if (model == "demo") {
    const std::string dir = options.binary_dir.empty() ? OwnBinaryDir() : options.binary_dir;
    for (const std::string& candidate : DemoCandidates(dir)) {
      if (Exists(fs::path(candidate) / "config.json")) return candidate;
    }
    return BadModel(fmt::format("the demo model is not beside the program (looked in {} and above); unpack its archive there, reinstall, or give --model DIR",
                                Escape(DemoCandidates(dir).front())));
  }
  if (model.empty()) return BadModel("the model is empty; give a directory, a hub id or demo");
  if (model.find('\0') != std::string::npos) return BadModel("the model's name contains a zero byte");
  if (IsDirectory(model)) return model;
  if (Exists(model)) return BadModel(fmt::format("model {} is a file; give the directory that holds config.json", Escape(model)));
  if (IsHubId(model)) return FindInHubCache(model, options);
  return BadModel(fmt::format("model directory {} does not exist; give a directory, a hub id (owner/name) or demo", Escape(model)));
}

}  // namespace deepinfer::hub
