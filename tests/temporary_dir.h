// SPDX-License-Identifier: Apache-2.0
//
// A directory of its own for one test, removed with everything in it at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/check.h"

namespace deepinfer::testing {

class TemporaryDir {
 public:
  TemporaryDir() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "deepinfer-test-XXXXXX").string();
    DI_CHECK(::mkdtemp(pattern.data()) != nullptr) << pattern;
    path_ = pattern;
  }
  TemporaryDir(const TemporaryDir&) = delete;
  TemporaryDir& operator=(const TemporaryDir&) = delete;
  ~TemporaryDir() {
    std::error_code ignored;  // a leftover directory fails no test
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, std::string_view bytes) const {
    const std::string file_path = path_ + "/" + name;
    std::ofstream file(file_path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    DI_CHECK(file.good()) << file_path;
    return file_path;
  }
  void CopyFrom(const std::string& directory) const {
    std::filesystem::copy(directory, path_, std::filesystem::copy_options::recursive);
  }

 private:
  std::string path_;
};

}  // namespace deepinfer::testing
