// SPDX-License-Identifier: Apache-2.0
//
// LoadEngine: from the name of a model to something that generates. Reads configuration and tokenizer, opens the
// checkpoint, compares the memory needed with what the machine has, then loads the weights onto the device. The Engine
// owns all parts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/status.h"
#include "engine/async_engine.h"
#include "engine/generator.h"
#include "model/config.h"
#include "model/model.h"
#include "model/numerics.h"
#include "text/tokenizer.h"

namespace deepinfer::engine {

struct LoadOptions {
  std::string model = "demo";   // a directory, a hub id in the local cache, or "demo"
  std::string revision = "main";  // of a hub id
  std::string device = "auto";  // auto, cpu, cuda[:N], ascend[:N]
  std::string cpu_isa = "auto";  // auto, scalar, avx2, avx512: the CPU kernels' instruction set
  std::string load_format = "auto";  // auto; dummy = seeded weights, only the configuration and the tokenizer are read
  model::Numerics numerics = model::Numerics::kRelease;
  int num_threads = 0;            // 0 = one per available core
  int64_t max_model_len = 0;      // prompt and output together; 0 = the model's max_position_embeddings, which also caps it
  int64_t cache_tokens = 0;       // 0 = the cache grows on demand
  bool with_draft = false;        // load the draft head
  bool use_fp4_sparse_kv = true;
  std::string decoder_replay = "off";  // off, mask, compact; auto = compact where the checkpoint allows it
  int64_t decoder_replay_keep = 0;     // prompt tokens kept; 0 = window + 12 (140 for the released model)
  int max_num_seqs = 32;               // requests of the asynchronous engine that run together
  bool check_memory = true;       // refuse before loading when the estimate exceeds the memory that is available
  GeneratorOptions generator;
  // (bytes done, bytes total), from the loading thread. Null: silent.
  std::function<void(int64_t, int64_t)> progress;
};

class Engine {
 public:
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Generator& generator();
  // Made by the first call; its caches stay allocated. It shares the model with the generator: before the generator or the
  // model is used again, AsyncEngine::core().WaitIdle() must have returned. Errors: kResourceExhausted.
  Result<AsyncEngine*> async_engine();
  model::Model& model();
  const model::ModelConfig& config() const;
  const text::Tokenizer& tokenizer() const;
  const std::string& model_dir() const;
  double load_s() const;

 private:
  friend Result<std::unique_ptr<Engine>> LoadEngine(LoadOptions options);
  Engine();
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Errors: kBadModel (missing, damaged or unsupported files), kResourceExhausted (memory), kInvalidArgument (options).
Result<std::unique_ptr<Engine>> LoadEngine(LoadOptions options);

}  // namespace deepinfer::engine
