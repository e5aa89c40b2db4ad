// SPDX-License-Identifier: Apache-2.0
//
// A pack file: the packed form of all experts of a checkpoint, written once, so that a miss is one aligned read with
// nothing left to do. A page of header (version, layout, fingerprint of the checkpoint), a checksum per expert, then one
// aligned extent per expert. Opened only when everything in the header fits; written under a temporary name first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/async_reader.h"
#include "core/file.h"
#include "core/status.h"
#include "core/threads.h"
#include "device/device.h"

namespace deepinfer::cpu {

struct PackKey {
  std::string fingerprint;
  int64_t num_experts = 0;
  int64_t extent_bytes = 0;  // a multiple of a page
};

class PackFile {
 public:
  // direct: for reads past the page cache; false: the file is mapped. Errors say why the file is of no use.
  static Result<PackFile> Open(const std::string& path, const PackKey& key, bool direct);

  InputFile& file() const { return *file_; }
  int64_t offset(int64_t extent) const { return data_offset_ + extent * extent_bytes_; }
  bool is_damaged() const { return map_.is_damaged(); }  // mapped pages could not be read
  const uint8_t* mapped(int64_t extent) const { return map_.data() + offset(extent); }
  // Compares what was read with the checksum, the first time that the extent comes.
  Status Check(int64_t extent, const uint8_t* bytes);

 private:
  std::shared_ptr<InputFile> file_;
  MappedFile map_;
  int64_t data_offset_ = 0;
  int64_t extent_bytes_ = 0;
  std::vector<uint64_t> checksums_;
  std::vector<bool> is_checked_;
};

// Packs `experts` in order; release() is called now and then: mapped pages of the experts so far are not needed any more.
// kBadModel: an expert is damaged; kResourceExhausted: the file cannot be written.
Status WritePackFile(const std::string& path, const PackKey& key, std::span<const device::HostExpert> experts, ThreadPool& pool,
                     const std::function<void()>& release);

uint64_t PackChecksum(const uint8_t* bytes, int64_t num_bytes);

}  // namespace deepinfer::cpu
