// SPDX-License-Identifier: Apache-2.0
//
// LoadEngine: from a model directory to something that generates. Opens the checkpoint, reads configuration and tokenizer,
// compares the memory needed with what the machine has, then loads the weights onto the device. Engine owns all parts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/status.h"
#include "engine/generator.h"
#include "model/config.h"
#include "model/model.h"
#include "model/numerics.h"
#include "text/tokenizer.h"

namespace deepinfer::engine {

struct LoadOptions {
  std::string model_dir;          // a directory; names are resolved by ResolveModelDir()
  std::string device = "auto";    // auto, cpu, cuda[:N], ascend[:N]
  std::string cpu_isa = "auto";   // auto, scalar, avx2, avx512: the CPU kernels' instruction set
  model::Numerics numerics = model::Numerics::kRelease;
  int num_threads = 0;            // 0 = one per available core
  int64_t max_model_len = 0;      // prompt and output together; 0 = the model's max_position_embeddings
  int64_t cache_tokens = 0;       // 0 = the cache grows on demand
  bool with_draft = false;        // load the draft head
  bool use_fp4_sparse_kv = true;
  bool check_memory = true;       // refuse before loading when the estimate exceeds the memory that is free
  GeneratorOptions generator;
  // (bytes done, bytes total), from the loading thread. Null: silent.
  std::function<void(int64_t, int64_t)> progress;
};

class Engine {
 public:
  ~Engine();
  Generator& generator();
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
