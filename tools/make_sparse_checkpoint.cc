// SPDX-License-Identifier: Apache-2.0
//
// make_sparse_checkpoint DIR [--tokenizer FILE]: the released checkpoint at full size, made of
// holes (48 shards of 510 GB that take some 15 MB on disk). Its weights are zero; the first and
// last rows of both Engram tables are marked. make_sparse_checkpoint --check DIR: opens such a
// directory and reads the marked rows back.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "model/checkpoint.h"
#include "model/checkpoint_writer.h"

namespace deepinfer::model {
namespace {

Status CheckRows(const std::string& dir) {
  DI_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(dir));
  for (const char* name : {"layers.1.engram.embed", "layers.14.engram.embed"}) {
    for (const bool is_scale : {false, true}) {
      DI_ASSIGN_OR_RETURN(
          const TensorView view,
          checkpoint->Get(fmt::format("{}.{}", name, is_scale ? "scale" : "weight")));
      for (const int64_t row : {int64_t{0}, view.dim(0) - 1}) {
        for (int64_t c = 0; c < view.dim(1); ++c) {
          const uint8_t expected = is_scale ? SparseScaleByte(row, c) : SparseTableByte(row, c);
          const uint8_t found = view.data[row * view.dim(1) + c];
          if (found != expected) {
            return BadModel(fmt::format(
                "{}: row {} byte {} is {} but {} was written", view.name, row, c, found, expected));
          }
        }
      }
    }
  }
  fmt::print("{}: {} tensors, {} bytes, marked rows are right\n",
             dir,
             checkpoint->tensors().size(),
             checkpoint->payload_bytes());
  return Status::Ok();
}

Status Write(const std::string& dir, const std::string& tokenizer) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return ResourceExhausted(fmt::format("cannot create {}: {}", dir, error.message()));
  DI_RETURN_IF_ERROR(WriteSparseReleasedCheckpoint(dir));
  if (!tokenizer.empty()) {
    std::filesystem::copy_file(tokenizer,
                               dir + "/tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing,
                               error);
    if (error) return BadModel(fmt::format("cannot copy {}: {}", tokenizer, error.message()));
  }
  return Status::Ok();
}

int Main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  std::string tokenizer;
  bool is_check = false;
  std::vector<std::string> dirs;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--check") {
      is_check = true;
    } else if (args[i] == "--tokenizer" && i + 1 < args.size()) {
      tokenizer = args[++i];
    } else {
      dirs.push_back(args[i]);
    }
  }
  if (dirs.size() != 1 || dirs[0].rfind("-", 0) == 0) {
    std::fputs(
        "usage: make_sparse_checkpoint DIR [--tokenizer FILE]\n       make_sparse_checkpoint "
        "--check DIR\n",
        stderr);
    return 2;
  }
  const Status status = is_check ? CheckRows(dirs[0]) : Write(dirs[0], tokenizer);
  if (status.ok()) return 0;
  fmt::print(stderr, "error: {}\n", status.message());
  return status.code() == StatusCode::kBadModel ? 3 : 1;
}

}  // namespace
}  // namespace deepinfer::model

int main(int argc, char** argv) {
  return deepinfer::model::Main(argc, argv);
}
