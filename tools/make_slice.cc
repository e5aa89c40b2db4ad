// SPDX-License-Identifier: Apache-2.0
//
// make_slice DIR: a checkpoint of seeded random weights in the release format with every matrix as
// wide as the released model but seven layers, one of each kind, and 16 experts (`perf-small`, 6.4
// GB; kinds in model/released_config.h). With
// --config, seeded weights for any configuration. Needs no Python and no torch.
#include <cstdio>
#include <filesystem>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "core/file.h"
#include "core/progress.h"
#include "model/checkpoint_writer.h"
#include "model/released_config.h"

namespace deepinfer::model {
namespace {

struct Options {
  std::string dir;
  std::string tokenizer;
  std::string config;
  SliceOptions slice;
  uint64_t seed = 1;
  int64_t shard_mb = 2000;
  int threads = 0;
  bool is_quiet = false;
  bool config_only = false;
};

Status Write(const Options& options) {
  Json json = SliceConfigJson(options.slice);
  const std::string origin = options.config.empty() ? "slice configuration" : options.config;
  if (!options.config.empty()) {
    DI_ASSIGN_OR_RETURN(json, ReadJsonFile(options.config));
  }
  DI_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::FromJson(json, origin));
  std::error_code error;
  std::filesystem::create_directories(options.dir, error);
  if (error)
    return ResourceExhausted(fmt::format("cannot create {}: {}", options.dir, error.message()));
  DI_RETURN_IF_ERROR(WriteFileAtomically(options.dir + "/config.json", json.dump(2) + "\n"));
  if (!options.tokenizer.empty()) {
    std::filesystem::copy_file(options.tokenizer,
                               options.dir + "/tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing,
                               error);
    if (error)
      return BadModel(fmt::format("cannot copy {}: {}", options.tokenizer, error.message()));
  }
  if (options.config_only) return Status::Ok();
  std::vector<RequiredTensor> tensors;
  int64_t num_bytes = 0;
  ForEachRequiredTensor(config, true, [&](const RequiredTensor& t) {
    tensors.push_back(t);
    num_bytes += t.num_bytes();
    return true;
  });
  const auto space = std::filesystem::space(options.dir, error);
  if (!error && static_cast<uint64_t>(num_bytes) > space.available) {
    return ResourceExhausted(fmt::format("{} needs {} but the disk has {} free",
                                         options.dir,
                                         FormatBytes(num_bytes),
                                         FormatBytes(static_cast<int64_t>(space.available))));
  }
  const auto shards = SplitIntoShards(tensors, options.shard_mb * 1'000'000);
  ThreadPool pool(options.threads);
  Progress progress("writing",
                    {.quiet = options.is_quiet,
                     .unit = ProgressUnit::kBytes,
                     .clock = nullptr,
                     .write_line = nullptr});
  DI_RETURN_IF_ERROR(WriteSeededCheckpoint(
      options.dir, shards, options.seed, pool, [&](int64_t done, int64_t total) {
        progress.Update(done, total);
      }));
  fmt::print("{}: {} tensors in {} shards, {} bytes\n",
             options.dir,
             tensors.size(),
             shards.size(),
             num_bytes);
  return Status::Ok();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("writes a real-width slice of the model with seeded random weights");
  app.add_option("dir", options.dir, "directory to write")->required();
  app.add_option("--tokenizer",
                 options.tokenizer,
                 "tokenizer.json to copy (tests/golden/tokenizer/tokenizer.json fits)");
  app.add_option(
      "--config", options.config, "write weights for this config.json instead of the slice");
  app.add_option("--experts", options.slice.num_experts, "routed experts of a layer")
      ->check(CLI::Range(6, 16384));
  app.add_option("--engram-rows", options.slice.engram_rows, "rows of the n-gram table, about")
      ->check(CLI::Range(1000, 1 << 30));
  app.add_option("--draft-stages", options.slice.num_draft_stages, "layers of the draft head")
      ->check(CLI::Range(0, 3));
  app.add_option(
         "--draft-experts", options.slice.num_draft_experts, "routed experts of a draft layer")
      ->check(CLI::Range(3, 16384));
  app.add_option("--seed", options.seed, "seed of the weights");
  app.add_option("--shard-mb", options.shard_mb, "size of a shard in MB, about")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--threads", options.threads, "0 = all cores")->check(CLI::Range(0, 4096));
  app.add_flag("--config-only", options.config_only, "no weights: for --load-format dummy");
  app.add_flag("--quiet", options.is_quiet, "no progress");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  const Status status = Write(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "error: {}\n", status.message());
  return status.code() == StatusCode::kBadModel ? 3 : 1;
}

}  // namespace
}  // namespace deepinfer::model

int main(int argc, char** argv) {
  return deepinfer::model::Main(argc, argv);
}
