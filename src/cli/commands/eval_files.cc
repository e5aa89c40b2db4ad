// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/eval_files.h"

#include <fmt/format.h>

namespace deepinfer::cli {

Result<std::vector<int32_t>> IdsOf(const Json& object, const char* key, const std::string& path, size_t index) {
  const Status wrong = BadModel(fmt::format("{}: item {} needs \"{}\", an array of token ids", path, index, key));
  if (!object.is_object()) return wrong;
  const auto field = object.find(key);
  if (field == object.end() || !field->is_array() || field->empty()) return wrong;
  std::vector<int32_t> ids;
  for (const Json& id : *field) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) return wrong;
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Result<std::vector<std::vector<int32_t>>> ReadSamples(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const Json file, ReadJsonFile(path));
  const Json* samples = file.is_array() ? &file : nullptr;
  if (file.is_object() && file.contains("samples") && file["samples"].is_array()) samples = &file["samples"];
  if (samples == nullptr || samples->empty()) return BadModel(path + ": expected an object with \"samples\", an array of objects with \"ids\"");
  std::vector<std::vector<int32_t>> inputs;
  for (size_t i = 0; i < samples->size(); ++i) {
    DI_ASSIGN_OR_RETURN(inputs.emplace_back(), IdsOf((*samples)[i], "ids", path, i));
    if (inputs.back().size() < 2) return BadModel(fmt::format("{}: sample {} needs at least two tokens", path, i));
  }
  return inputs;
}

}  // namespace deepinfer::cli
