// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>

#include <fmt/format.h>

#include "core/memory_info.h"
#include "core/progress.h"
#include "model/checkpoint.h"
#include "model/inventory.h"
#include "model/seeded_weights.h"

namespace deepinfer::model {

namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kDummyTileBytes = int64_t{1} << 20;

}  // namespace

void Checkpoint::Unmap::operator()(uint8_t* memory) const {
  ::munmap(memory, static_cast<size_t>(num_bytes));
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::Dummy(const ModelConfig& config,
                                                      uint64_t seed,
                                                      ThreadPool* pool) {
  std::vector<RequiredTensor> tensors;
  int64_t memory_bytes = 0;
  ForEachRequiredTensor(config, true, [&](const RequiredTensor& t) {
    memory_bytes += (t.num_bytes() + kAlignment - 1) / kAlignment * kAlignment;
    tensors.push_back(t);
    return true;
  });
  const MemoryInfo info = ReadMemoryInfo();
  if (memory_bytes > info.available_bytes) {
    return ResourceExhausted(fmt::format(
        "dummy weights need {} of memory but {} is available; use a smaller configuration",
        FormatBytes(memory_bytes),
        FormatBytes(info.available_bytes)));
  }
  void* mapped = ::mmap(nullptr,
                        static_cast<size_t>(memory_bytes),
                        PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS,
                        -1,
                        0);
  if (mapped == MAP_FAILED) {
    return ResourceExhausted(fmt::format("cannot allocate {} for dummy weights: {}",
                                         FormatBytes(memory_bytes),
                                         std::strerror(errno)));
  }
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->dir_ = "dummy weights";
  checkpoint->memory_ =
      std::unique_ptr<uint8_t, Unmap>(static_cast<uint8_t*>(mapped), Unmap(memory_bytes));

  struct Tile {
    const RequiredTensor* tensor;
    int64_t begin;
    std::span<uint8_t> out;
  };
  std::vector<Tile> tiles;
  uint8_t* at = checkpoint->memory_.get();
  for (const RequiredTensor& t : tensors) {
    TensorView view;
    view.name = t.name;
    view.dtype = t.dtype;
    view.shape.assign(t.shape().begin(), t.shape().end());
    view.data = at;
    view.num_bytes = t.num_bytes();
    for (int64_t begin = 0; begin < view.num_bytes; begin += kDummyTileBytes) {
      tiles.push_back(
          {&t,
           begin,
           {at + begin, static_cast<size_t>(std::min(kDummyTileBytes, view.num_bytes - begin))}});
    }
    at += (view.num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    checkpoint->payload_bytes_ += view.num_bytes;
    checkpoint->tensors_.emplace(t.name, std::move(view));
  }
  const auto fill = [&](int64_t i, int) {
    const Tile& tile = tiles[static_cast<size_t>(i)];
    FillSeeded(*tile.tensor, seed, tile.begin, tile.out);
  };
  if (pool != nullptr) {
    pool->ParallelFor(static_cast<int64_t>(tiles.size()), fill);
  } else {
    for (int64_t i = 0; i < static_cast<int64_t>(tiles.size()); ++i) fill(i, 0);
  }
  return checkpoint;
}

}  // namespace deepinfer::model
