// SPDX-License-Identifier: Apache-2.0
#include "model/trace.h"

namespace deepinfer::model {

namespace {

int64_t Width(std::initializer_list<int64_t> shape) {
  int64_t width = 1;
  for (const int64_t* d = shape.begin() + 1; d < shape.end(); ++d) width *= *d;
  return width;
}

}  // namespace

bool Tracer::Act(const std::string& name, const device::Act& x, std::initializer_list<int64_t> shape) {
  if (sink_ == nullptr) return false;
  const int64_t rows = *shape.begin(), width = Width(shape);
  floats_.resize(static_cast<size_t>(rows * width));
  device_.ReadAct(x, rows, width, floats_.data());
  bool is_replaced = false;
  if (sink_->inject) {
    is_replaced = sink_->inject(name, {shape.begin(), shape.size()}, floats_.data());
    if (is_replaced) device_.WriteAct(x, rows, width, floats_.data());
  }
  if (sink_->on_float) sink_->on_float(name, {shape.begin(), shape.size()}, floats_.data());
  return is_replaced;
}

bool Tracer::Floats(const std::string& name, float* device_data, std::initializer_list<int64_t> shape) {
  if (sink_ == nullptr) return false;
  floats_.resize(static_cast<size_t>(*shape.begin() * Width(shape)));
  const int64_t bytes = static_cast<int64_t>(floats_.size() * sizeof(float));
  device_.Download(floats_.data(), device_data, bytes);
  bool is_replaced = false;
  if (sink_->inject) {
    is_replaced = sink_->inject(name, {shape.begin(), shape.size()}, floats_.data());
    if (is_replaced) device_.Upload(device_data, floats_.data(), bytes);
  }
  if (sink_->on_float) sink_->on_float(name, {shape.begin(), shape.size()}, floats_.data());
  return is_replaced;
}

void Tracer::Ints(const std::string& name, const int32_t* device_data, std::initializer_list<int64_t> shape) {
  if (sink_ == nullptr || !sink_->on_int) return;
  ints_.resize(static_cast<size_t>(*shape.begin() * Width(shape)));
  device_.Download(ints_.data(), device_data, static_cast<int64_t>(ints_.size() * sizeof(int32_t)));
  sink_->on_int(name, {shape.begin(), shape.size()}, ints_.data());
}

void Tracer::HostInts(const std::string& name, const std::vector<int32_t>& data, std::initializer_list<int64_t> shape) {
  if (sink_ != nullptr && sink_->on_int) sink_->on_int(name, {shape.begin(), shape.size()}, data.data());
}

}  // namespace deepinfer::model
