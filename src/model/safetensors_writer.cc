// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors_writer.h"

#include "core/file.h"
#include "core/json.h"

namespace deepinfer::model {

void SafetensorsWriter::Add(const std::string& name, DType dtype, const std::vector<int64_t>& shape, const void* data,
                            int64_t num_bytes) {
  const int64_t begin = static_cast<int64_t>(data_.size());
  entries_.push_back({name, dtype, shape, begin, begin + num_bytes});
  data_.append(static_cast<const char*>(data), static_cast<size_t>(num_bytes));
}

Status SafetensorsWriter::WriteFile(const std::string& path) const {
  Json header = Json::object();
  for (const Entry& e : entries_)
    header[e.name] = Json{{"dtype", DTypeName(e.dtype)}, {"shape", e.shape}, {"data_offsets", {e.begin, e.end}}};
  std::string text = DumpJson(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[static_cast<size_t>(i)] = static_cast<char>((static_cast<uint64_t>(text.size()) >> (8 * i)) & 0xff);
  file += text;
  file += data_;
  return WriteFileAtomically(path, file);
}

}  // namespace deepinfer::model
