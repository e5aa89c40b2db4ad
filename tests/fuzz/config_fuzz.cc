// SPDX-License-Identifier: Apache-2.0
//
// Arbitrary text as a config.json. A configuration that is accepted must give a sane inventory.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/json.h"
#include "model/config.h"
#include "model/inventory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deepinfer;
  const auto json = ParseJson(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!json.ok()) return 0;
  const auto config = model::ModelConfig::FromJson(*json, "fuzz");
  if (!config.ok()) return 0;
  int num_visited = 0;
  model::ForEachRequiredTensor(*config, true, [&](const model::RequiredTensor& tensor) {
    if (tensor.num_bytes() <= 0 || tensor.num_parameters() < 0) std::abort();
    return ++num_visited < 2000;
  });
  for (int layer = 0; layer < config->num_hidden_layers; ++layer) {
    if (config->kv_source(layer) > layer || config->index_source(layer) > layer) std::abort();
  }
  config->CheckDecoderReplay().IgnoreError();  // only must not crash
  return 0;
}
