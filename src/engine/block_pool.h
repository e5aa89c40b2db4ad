// SPDX-License-Identifier: Apache-2.0
//
// Ids with reference counts: cache blocks, or state slots. Id 0 is null (padding) and never handed out. The free list is
// FIFO. A keyed block (its content is in the prefix cache) stays addressable at count 0 until the free list hands it out:
// then `on_reuse` tells the cache. Pure accounting, no memory. Not thread-safe: the scheduler's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace deepinfer::engine {

class BlockPool {
 public:
  enum class Fit { kNow, kLater, kNever };

  // Ids 1..num_ids-1.
  explicit BlockPool(int32_t num_ids);

  // Called with a keyed block that is about to be handed out for new content.
  void set_on_reuse(std::function<void(int32_t)> on_reuse) { on_reuse_ = std::move(on_reuse); }

  Fit CanAllocate(int64_t count) const;
  // Count 1; 0 if none is free. Drops the key of what it hands out.
  int32_t Allocate();
  // One more owner of a block that has one.
  void Pin(int32_t id);
  // One more owner of a keyed block, whether it has one or not (a prefix hit).
  void Take(int32_t id);
  // One owner less; a block without owners goes to the tail of the free list.
  void Release(int32_t id);
  // Back to front, so that the end of a prefix is reused before its beginning.
  void ReleaseTable(std::vector<int32_t>& table);

  void SetKeyed(int32_t id, bool is_keyed);
  bool is_keyed(int32_t id) const { return nodes_[Check(id)].is_keyed; }
  int ref_count(int32_t id) const { return nodes_[Check(id)].refs; }
  int64_t num_usable() const { return static_cast<int64_t>(nodes_.size()) - 1; }
  int64_t num_free() const { return num_free_; }
  int64_t num_used() const { return num_usable() - num_free_; }

 private:
  struct Node {
    int32_t refs = 0;
    int32_t prev = 0;  // free list; node 0 is its sentinel
    int32_t next = 0;
    bool is_keyed = false;
  };
  size_t Check(int32_t id) const;
  void Unlink(int32_t id);
  void PushTail(int32_t id);

  std::vector<Node> nodes_;
  int64_t num_free_ = 0;
  std::function<void(int32_t)> on_reuse_;
};

}  // namespace deepinfer::engine
