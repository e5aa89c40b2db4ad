// SPDX-License-Identifier: Apache-2.0
#include "engine/block_pool.h"

#include <algorithm>

#include "core/check.h"

namespace deepinfer::engine {

BlockPool::BlockPool(int32_t num_ids) : nodes_(static_cast<size_t>(std::max(num_ids, 1))) {
  for (int32_t id = 1; id < num_ids; ++id) PushTail(id);
}

size_t BlockPool::Check(int32_t id) const {
  DI_CHECK(id > 0 && static_cast<size_t>(id) < nodes_.size()) << "id " << id << " of " << nodes_.size();
  return static_cast<size_t>(id);
}

void BlockPool::Unlink(int32_t id) {
  Node& node = nodes_[static_cast<size_t>(id)];
  nodes_[static_cast<size_t>(node.prev)].next = node.next;
  nodes_[static_cast<size_t>(node.next)].prev = node.prev;
  node.prev = node.next = 0;
  --num_free_;
}

void BlockPool::PushTail(int32_t id) {
  Node& node = nodes_[static_cast<size_t>(id)];
  node.prev = nodes_[0].prev;
  node.next = 0;
  nodes_[static_cast<size_t>(node.prev)].next = id;
  nodes_[0].prev = id;
  ++num_free_;
}

BlockPool::Fit BlockPool::CanAllocate(int64_t count) const {
  if (count > num_usable()) return Fit::kNever;
  return count <= num_free_ ? Fit::kNow : Fit::kLater;
}

int32_t BlockPool::Allocate() {
  const int32_t id = nodes_[0].next;
  if (id == 0) return 0;
  Unlink(id);
  Node& node = nodes_[static_cast<size_t>(id)];
  node.refs = 1;
  if (node.is_keyed) {
    node.is_keyed = false;
    if (on_reuse_) on_reuse_(id);
  }
  return id;
}

void BlockPool::Pin(int32_t id) {
  Node& node = nodes_[Check(id)];
  DI_CHECK(node.refs > 0) << "pin of block " << id << " without owner";
  ++node.refs;
}

void BlockPool::Take(int32_t id) {
  Node& node = nodes_[Check(id)];
  DI_CHECK(node.is_keyed) << "take of block " << id << " without key";
  if (node.refs == 0) Unlink(id);
  ++node.refs;
}

void BlockPool::Release(int32_t id) {
  Node& node = nodes_[Check(id)];
  DI_CHECK(node.refs > 0) << "release of block " << id << " without owner";
  if (--node.refs == 0) PushTail(id);
}

void BlockPool::ReleaseTable(std::vector<int32_t>& table) {
  for (; !table.empty(); table.pop_back()) Release(table.back());
}

void BlockPool::SetKeyed(int32_t id, bool is_keyed) { nodes_[Check(id)].is_keyed = is_keyed; }

}  // namespace deepinfer::engine
