// SPDX-License-Identifier: Apache-2.0
//
// Golden tensors of tests/golden/, read with the engine's own reader. A missing file or tensor
// fails the test at once.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "core/check.h"
#include "model/safetensors.h"

namespace deepinfer::testing {

class GoldenFile {
 public:
  // `name` below tests/golden, as in "model/engram.safetensors".
  explicit GoldenFile(const std::string& name)
      : file_(model::SafetensorsFile::Open(std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/" +
                                           name)
                  .value()) {}

  bool Has(const std::string& tensor) const { return file_.Find(tensor) != nullptr; }
  const std::vector<int64_t>& Shape(const std::string& tensor) const { return View(tensor).shape; }

  std::vector<float> Floats(const std::string& tensor) const {
    return Values<float>(tensor, DType::kF32);
  }
  std::vector<uint8_t> Bytes(const std::string& tensor) const {
    return Values<uint8_t>(tensor, DType::kU8);
  }
  // I64 or I32.
  std::vector<int64_t> Ints(const std::string& tensor) const {
    if (View(tensor).dtype == DType::kI64) return Values<int64_t>(tensor, DType::kI64);
    const std::vector<int32_t> values = Values<int32_t>(tensor, DType::kI32);
    return {values.begin(), values.end()};
  }
  // Integers that are token ids.
  std::vector<int32_t> Ids(const std::string& tensor) const {
    const std::vector<int64_t> values = Ints(tensor);
    std::vector<int32_t> ids;
    for (const int64_t v : values) ids.push_back(static_cast<int32_t>(v));
    return ids;
  }
  const model::SafetensorsFile& file() const { return file_; }

 private:
  const model::TensorView& View(const std::string& tensor) const {
    const model::TensorView* view = file_.Find(tensor);
    DI_CHECK(view != nullptr) << file_.path() << " has no " << tensor;
    return *view;
  }
  template <typename T>
  std::vector<T> Values(const std::string& tensor, DType dtype) const {
    const model::TensorView& view = View(tensor);
    DI_CHECK(view.dtype == dtype) << tensor << " has another dtype";
    std::vector<T> values(static_cast<size_t>(view.num_elements()));
    std::memcpy(values.data(), view.data, static_cast<size_t>(view.num_bytes));
    return values;
  }

  model::SafetensorsFile file_;
};

}  // namespace deepinfer::testing
