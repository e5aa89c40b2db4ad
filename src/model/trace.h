// SPDX-License-Identifier: Apache-2.0
//
// The model's side of a TraceSink: hands named stages to it as float32 host data and writes injected values back.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "device/device.h"
#include "model/model.h"

namespace deepinfer::model {

class Tracer {
 public:
  Tracer(TraceSink* sink, device::Device& device) : sink_(sink), device_(device) {}

  // Cheap test in front of building a name.
  bool is_on() const { return sink_ != nullptr; }

  // `shape` is [rows, ...]; its product over all but the first is the width of a row. True if the value was replaced.
  bool Act(const std::string& name, const device::Act& x, std::initializer_list<int64_t> shape);
  bool Floats(const std::string& name, float* device_data, std::initializer_list<int64_t> shape);
  void Ints(const std::string& name, const int32_t* device_data, std::initializer_list<int64_t> shape);
  // Host data.
  void HostInts(const std::string& name, const std::vector<int32_t>& data, std::initializer_list<int64_t> shape);

 private:
  TraceSink* sink_;
  device::Device& device_;
  std::vector<float> floats_;
  std::vector<int32_t> ints_;
};

}  // namespace deepinfer::model
