// SPDX-License-Identifier: Apache-2.0
//
// The two files of `deepinfer batch`: requests in, one a line, and their results out, one a line in the same order. An
// output that an interrupted run left behind is continued after its last whole line, if its lines belong to the input.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/output.h"
#include "core/json.h"
#include "core/status.h"

namespace deepinfer::cli {

struct BatchItem {
  std::string url;
  Json body;
};

class BatchInput {
 public:
  // A file, or stdin for "-". kBadModel when it cannot be read, is empty, or gives two requests the same custom_id.
  static Result<BatchInput> Open(const std::string& path);
  // `name` stands for the file in messages.
  static Result<BatchInput> FromText(std::string text, std::string name);

  size_t size() const { return lines_.size(); }
  const std::string& name() const { return name_; }
  // Made from the line's bytes: the same in every run, different for every request.
  std::string id(size_t i) const;
  // As JSON: null if the line has none.
  Json custom_id(size_t i) const;
  int64_t line_number(size_t i) const { return lines_[i].number; }
  // What is wrong with a line as a request of a batch file, as kInvalidArgument.
  Result<BatchItem> Parse(size_t i) const;

 private:
  struct Line {
    size_t begin = 0, size = 0;
    int64_t number = 0;  // from 1, blank lines counted
    std::string custom_id;
    bool has_custom_id = false;
  };
  std::string_view text_of(size_t i) const { return std::string_view(text_).substr(lines_[i].begin, lines_[i].size); }

  std::string text_;
  std::string name_;
  std::vector<Line> lines_;
};

class BatchOutput {
 public:
  // "-" is `out`; a file that exists is checked line by line against the input. Errors: kInvalidArgument (it is no result
  // of this input, or the input itself), kResourceExhausted (it cannot be written, another run writes it).
  static Result<std::unique_ptr<BatchOutput>> Open(const std::string& path, const std::string& input_path, const BatchInput& input,
                                                   Output& out);
  ~BatchOutput();
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;

  // Lines that were there already.
  size_t num_done() const { return num_done_; }
  bool is_resumable() const { return is_resumable_; }
  // One whole line, in the file when this returns.
  Status Append(std::string_view line);
  // After the last line: the bytes are on the disk.
  Status Finish();

 private:
  explicit BatchOutput(std::string path) : path_(std::move(path)) {}
  Status Continue(const BatchInput& input);

  std::string path_;
  int fd_ = -1;              // -1: stdout
  Output* stdout_ = nullptr;
  bool is_resumable_ = false;
  size_t num_done_ = 0;
};

// How a line of the output begins; the rest is "response" and "error".
Json BatchLine(const BatchInput& input, size_t i);

}  // namespace deepinfer::cli
