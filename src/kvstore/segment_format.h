// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a segment file (kv-store.md 4 of the specification): a header of 4096 bytes, records on multiples of 512, and
// in a sealed file a footer whose trailer is the last 64 bytes. Little-endian, every part with a checksum. Pure functions
// on memory: they read nothing that is not in the span they are given, whatever the bytes are (segment_fuzz.cc).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "kvstore/block_key.h"

namespace deepinfer::kvstore {

inline constexpr size_t kSegmentHeaderBytes = 4096;
inline constexpr size_t kRecordAlign = 512;
inline constexpr size_t kRecordHeaderBytes = 512;
inline constexpr size_t kFooterEntryBytes = 96;
inline constexpr size_t kFooterTrailerBytes = 64;
inline constexpr uint64_t kMaxSegmentBytes = uint64_t{4} << 30;

using Uuid = std::array<uint8_t, 16>;
std::string UuidText(const Uuid& uuid);  // 32 hexadecimal digits

// How long blocks are kept; one segment holds one class.
enum class RetentionClass : uint32_t { kAgent = 0, kChat = 1, kBatch = 2, kPinned = 3 };
inline constexpr int kNumClasses = 4;
std::string_view ClassName(RetentionClass retention);
Result<RetentionClass> ParseClass(std::string_view name);

enum class RecordType : uint8_t { kBlock = 1, kState = 2, kEmbedding = 3, kTombstone = 4 };

// Bits of a block in records, footers and the index.
inline constexpr uint8_t kFlagReplayed = 4;  // the writer had replayed rows; not for mode exact

struct SegmentHeader {
  Uuid segment{};
  Uuid store{};
  int64_t created_unix_ns = 0;
  uint64_t writer_id = 0;
  RetentionClass retention = RetentionClass::kChat;
  uint32_t layout_id = 1;
  uint32_t payload_bytes = 0;
  Key256 weights_digest;
  bool operator==(const SegmentHeader&) const = default;
};

struct RecordHeader {
  RecordType type = RecordType::kBlock;
  uint8_t flags = 0;
  Key256 key;
  Key256 parent;  // the root for block 0
  uint32_t block_index = 0;
  uint32_t num_tokens = 128;
  uint32_t payload_len = 0;
  uint32_t raw_len = 0;
  int64_t written_unix_ns = 0;
  uint64_t expires_hint_unix_s = 0;
  uint32_t layout_id = 1;
  uint32_t numerics_class = 0;
  std::array<uint64_t, 2> payload_hash{};  // XXH3-128, low word first
  bool operator==(const RecordHeader&) const = default;
};

struct FooterEntry {
  Key256 key;
  uint64_t offset = 0;
  uint32_t payload_len = 0;
  uint32_t block_index = 0;
  uint64_t parent_low64 = 0;  // the parent's first eight bytes
  uint32_t flags = 0;
  bool operator==(const FooterEntry&) const = default;
};

struct Footer {
  std::vector<FooterEntry> entries;
  uint64_t footer_offset = 0;
  uint64_t live_bytes = 0;
  int64_t sealed_unix_ns = 0;
};

// First eight bytes of a key as they are in memory.
uint64_t KeyLow64(const Key256& key);
// What the footer says of the record at `offset`.
FooterEntry FooterEntryOf(const RecordHeader& header, uint64_t offset);
// XXH3-64: of headers and footers.
uint64_t HeaderHash(std::span<const uint8_t> bytes);
std::array<uint64_t, 2> PayloadHash(std::span<const uint8_t> payload);
// Header, payload and padding.
uint64_t RecordBytes(uint32_t payload_len);

void EncodeSegmentHeader(const SegmentHeader& header, std::span<uint8_t> out);
void EncodeRecordHeader(const RecordHeader& header, std::span<uint8_t> out);
std::vector<uint8_t> EncodeFooter(const Footer& footer);

// kBadModel says what is damaged; kUnimplemented: intact, but of a version or kind that this program does not know. The
// messages name no file: the caller adds it.
Result<SegmentHeader> DecodeSegmentHeader(std::span<const uint8_t> bytes);
Result<RecordHeader> DecodeRecordHeader(std::span<const uint8_t> bytes);
// `file` is the whole file; every entry lies between the header and the footer.
Result<Footer> DecodeFooter(std::span<const uint8_t> file);
// The record at `offset` of a file: header and payload intact, and wholly there.
Result<RecordHeader> CheckRecord(std::span<const uint8_t> file, uint64_t offset);

// Calls `visit` for each intact record from the front and stops at the first that is not, or at the footer. Returns where it
// stopped: what a file that was never sealed is cut to.
uint64_t ScanRecords(std::span<const uint8_t> file, const std::function<void(const RecordHeader&, uint64_t offset)>& visit);

}  // namespace deepinfer::kvstore
