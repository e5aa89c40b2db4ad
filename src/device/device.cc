// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

namespace deepinfer::device {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) device_->Free(data_, bytes_);
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) device_->Free(data_, bytes_);
}

}  // namespace deepinfer::device
