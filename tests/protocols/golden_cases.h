// SPDX-License-Identifier: Apache-2.0
//
// Reads the golden cases of tests/golden/protocols and tests/golden/cases.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/file.h"
#include "core/json.h"

namespace deepinfer::protocols {

inline std::string GoldenPath(const std::string& name) { return std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/" + name; }

inline std::vector<Json> ReadJsonLines(const std::string& name) {
  std::vector<Json> cases;
  Result<std::string> text = ReadFile(GoldenPath(name), int64_t{1} << 28);
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  if (!text.ok()) return cases;
  size_t begin = 0;
  while (begin < text->size()) {
    const size_t end = std::min(text->find('\n', begin), text->size());
    if (end > begin) {
      Result<Json> line = ParseJson(std::string_view(*text).substr(begin, end - begin));
      EXPECT_TRUE(line.ok()) << name << ": " << line.status().ToString();
      if (line.ok()) cases.push_back(*line);
    }
    begin = end + 1;
  }
  EXPECT_FALSE(cases.empty()) << name;
  return cases;
}

inline Json ReadCase(const std::string& name) {
  Result<Json> json = ReadJsonFile(GoldenPath("cases/" + name));
  EXPECT_TRUE(json.ok()) << json.status().ToString();
  return json.ok() ? *json : Json::object();
}

}  // namespace deepinfer::protocols
