// SPDX-License-Identifier: Apache-2.0
//
// LookupDrafter: drafts from the text itself. Where the newest three tokens of a sequence stood before, what followed them
// there is likely to follow again (quotes, code that is edited, names). It costs no forward pass. Per slot: all its tokens
// and a table from hashed triples to the place where each was seen last. The compute thread calls everything.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::engine {

class LookupDrafter {
 public:
  explicit LookupDrafter(int64_t num_slots) : slots_(static_cast<size_t>(num_slots)) {}

  // The slot gets a sequence that begins with these tokens.
  void Bind(int32_t slot, std::span<const int32_t> tokens);
  // Slot `to` := the first `length` tokens of `from`.
  void Copy(int32_t from, int32_t to, int64_t length);
  void Append(int32_t slot, std::span<const int32_t> tokens);
  void Truncate(int32_t slot, int64_t length);

  // What followed the newest occurrence of the slot's last two tokens and `newest`, which is not in the slot yet; the number
  // of tokens written to `drafts`, 0 if there is no such place.
  size_t Propose(int32_t slot, int32_t newest, std::span<int32_t> drafts) const;

  // How likely a draft of the slot is accepted if those before it were: what its last ones were worth.
  float acceptance(int32_t slot) const { return slots_[static_cast<size_t>(slot)].acceptance; }
  // Of `num_verified` drafts the first `num_accepted` were.
  void Report(int32_t slot, int num_verified, int num_accepted);
  // A step in which the slot had no drafts from here: what is known about them becomes old.
  void Forget(int32_t slot);

 private:
  static constexpr float kExpected = 0.7f;  // of a slot that nothing is known about
  struct Slot {
    std::vector<int32_t> tokens;
    std::vector<int32_t> last;  // by hash: index of the third token of a triple, -1 = none
    float acceptance = kExpected;
  };
  static size_t Hash(int32_t a, int32_t b, int32_t c, size_t size);
  static void Index(Slot& slot, size_t begin);

  std::vector<Slot> slots_;
};

}  // namespace deepinfer::engine
