// SPDX-License-Identifier: Apache-2.0
#include "kvstore/segment_format.h"

#include <bit>
#include <cstring>

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/check.h"
#include "kvstore/fields.h"

namespace deepinfer::kvstore {
namespace {

constexpr std::string_view kSegmentMagic = "DIKVSEG1";
constexpr std::string_view kFooterMagic = "DIKVFTR1";
constexpr uint32_t kRecordMagic = 0x4B4C4244;  // "DBLK"
constexpr uint32_t kChecksumXxh3 = 1;
constexpr size_t kRecordHashedBytes = 184;

bool HasText(std::span<const uint8_t> bytes, std::string_view text) { return std::memcmp(bytes.data(), text.data(), text.size()) == 0; }

bool IsZero(std::span<const uint8_t> bytes) {
  for (const uint8_t byte : bytes) {
    if (byte != 0) return false;
  }
  return true;
}

}  // namespace

std::string UuidText(const Uuid& uuid) {
  std::string text;
  for (const uint8_t byte : uuid) text += fmt::format("{:02x}", byte);
  return text;
}

std::string_view ClassName(RetentionClass retention) {
  static constexpr std::string_view kNames[] = {"agent", "chat", "batch", "pinned"};
  return kNames[static_cast<size_t>(retention)];
}

Result<RetentionClass> ParseClass(std::string_view name) {
  for (int i = 0; i < kNumClasses; ++i) {
    if (name == ClassName(static_cast<RetentionClass>(i))) return static_cast<RetentionClass>(i);
  }
  return InvalidArgument(fmt::format("\"{}\" is no retention class; agent, chat, batch and pinned are", name));
}

uint64_t KeyLow64(const Key256& key) { return GetField<uint64_t>(key.bytes, 0); }

FooterEntry FooterEntryOf(const RecordHeader& header, uint64_t offset) {
  return {.key = header.key,
          .offset = offset,
          .payload_len = header.payload_len,
          .block_index = header.block_index,
          .parent_low64 = KeyLow64(header.parent),
          .flags = header.flags};
}

uint64_t HeaderHash(std::span<const uint8_t> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::array<uint64_t, 2> PayloadHash(std::span<const uint8_t> payload) {
  const XXH128_hash_t hash = XXH3_128bits(payload.data(), payload.size());
  return {hash.low64, hash.high64};
}

uint64_t RecordBytes(uint32_t payload_len) {
  return kRecordHeaderBytes + (uint64_t{payload_len} + kRecordAlign - 1) / kRecordAlign * kRecordAlign;
}

void EncodeSegmentHeader(const SegmentHeader& header, std::span<uint8_t> out) {
  DI_CHECK(out.size() == kSegmentHeaderBytes);
  std::memset(out.data(), 0, out.size());
  std::memcpy(out.data(), kSegmentMagic.data(), kSegmentMagic.size());
  PutField<uint32_t>(out, 8, 1);
  PutField<uint32_t>(out, 12, kSegmentHeaderBytes);
  PutField(out, 16, header.segment);
  PutField(out, 32, header.store);
  PutField(out, 48, header.created_unix_ns);
  PutField(out, 56, header.writer_id);
  PutField(out, 64, static_cast<uint32_t>(header.retention));
  PutField(out, 68, header.layout_id);
  PutField(out, 72, header.payload_bytes);
  PutField<uint32_t>(out, 76, kRecordAlign);
  PutField(out, 80, header.weights_digest.bytes);
  PutField(out, 112, kChecksumXxh3);
  PutField(out, 4088, HeaderHash(out.first(4088)));
}

Result<SegmentHeader> DecodeSegmentHeader(std::span<const uint8_t> bytes) {
  if (bytes.size() < kSegmentHeaderBytes) return BadModel("the segment header is cut off");
  bytes = bytes.first(kSegmentHeaderBytes);
  if (!HasText(bytes, kSegmentMagic)) return BadModel("it does not begin like a segment");
  if (GetField<uint64_t>(bytes, 4088) != HeaderHash(bytes.first(4088))) return BadModel("the segment header is damaged (checksum)");
  if (const auto version = GetField<uint32_t>(bytes, 8); version != 1) {
    return Unimplemented(fmt::format("it has format version {}, this program knows 1", version));
  }
  const auto algorithm = GetField<uint32_t>(bytes, 112), flags = GetField<uint32_t>(bytes, 116);
  const auto retention = GetField<uint32_t>(bytes, 64);
  if (GetField<uint32_t>(bytes, 12) != kSegmentHeaderBytes || GetField<uint32_t>(bytes, 76) != kRecordAlign ||
      algorithm != kChecksumXxh3 || retention >= kNumClasses) {
    return Unimplemented("its header asks for a layout that this program does not know");
  }
  if (flags != 0) return Unimplemented("it is encrypted or compressed, which this program does not read");
  SegmentHeader header;
  header.segment = GetField<Uuid>(bytes, 16);
  header.store = GetField<Uuid>(bytes, 32);
  header.created_unix_ns = GetField<int64_t>(bytes, 48);
  header.writer_id = GetField<uint64_t>(bytes, 56);
  header.retention = static_cast<RetentionClass>(retention);
  header.layout_id = GetField<uint32_t>(bytes, 68);
  header.payload_bytes = GetField<uint32_t>(bytes, 72);
  header.weights_digest.bytes = GetField<std::array<uint8_t, 32>>(bytes, 80);
  return header;
}

void EncodeRecordHeader(const RecordHeader& header, std::span<uint8_t> out) {
  DI_CHECK(out.size() == kRecordHeaderBytes);
  std::memset(out.data(), 0, out.size());
  PutField(out, 0, kRecordMagic);
  PutField<uint16_t>(out, 4, 1);
  PutField(out, 6, static_cast<uint8_t>(header.type));
  PutField(out, 7, header.flags);
  PutField(out, 8, header.key.bytes);
  PutField(out, 40, header.parent.bytes);
  PutField(out, 72, header.block_index);
  PutField(out, 76, header.num_tokens);
  PutField(out, 80, header.payload_len);
  PutField(out, 84, header.raw_len);
  PutField(out, 88, header.written_unix_ns);
  PutField(out, 96, header.expires_hint_unix_s);
  PutField(out, 104, header.layout_id);
  PutField(out, 108, header.numerics_class);
  PutField(out, 112, header.payload_hash);
  PutField(out, kRecordHashedBytes, HeaderHash(out.first(kRecordHashedBytes)));
}

Result<RecordHeader> DecodeRecordHeader(std::span<const uint8_t> bytes) {
  if (bytes.size() < kRecordHeaderBytes) return BadModel("the record header is cut off");
  bytes = bytes.first(kRecordHeaderBytes);
  if (GetField<uint32_t>(bytes, 0) != kRecordMagic) return BadModel("no record begins there");
  if (GetField<uint64_t>(bytes, kRecordHashedBytes) != HeaderHash(bytes.first(kRecordHashedBytes))) {
    return BadModel("the record header is damaged (checksum)");
  }
  // The checksum ends at byte 192: what follows must be the zeros that were written.
  if (!IsZero(bytes.subspan(kRecordHashedBytes + 8))) return BadModel("the record header is damaged (padding)");
  if (const auto version = GetField<uint16_t>(bytes, 4); version != 1) {
    return Unimplemented(fmt::format("the record has version {}, this program knows 1", version));
  }
  const auto type = GetField<uint8_t>(bytes, 6), flags = GetField<uint8_t>(bytes, 7);
  if (type < 1 || type > 4) return Unimplemented(fmt::format("the record has the unknown type {}", type));
  if ((flags & ~kFlagReplayed) != 0) return Unimplemented(fmt::format("the record has the unknown flags {:#x}", flags));
  RecordHeader header;
  header.type = static_cast<RecordType>(type);
  header.flags = flags;
  header.key.bytes = GetField<std::array<uint8_t, 32>>(bytes, 8);
  header.parent.bytes = GetField<std::array<uint8_t, 32>>(bytes, 40);
  header.block_index = GetField<uint32_t>(bytes, 72);
  header.num_tokens = GetField<uint32_t>(bytes, 76);
  header.payload_len = GetField<uint32_t>(bytes, 80);
  header.raw_len = GetField<uint32_t>(bytes, 84);
  header.written_unix_ns = GetField<int64_t>(bytes, 88);
  header.expires_hint_unix_s = GetField<uint64_t>(bytes, 96);
  header.layout_id = GetField<uint32_t>(bytes, 104);
  header.numerics_class = GetField<uint32_t>(bytes, 108);
  header.payload_hash = GetField<std::array<uint64_t, 2>>(bytes, 112);
  return header;
}

std::vector<uint8_t> EncodeFooter(const Footer& footer) {
  const size_t entries_bytes = footer.entries.size() * kFooterEntryBytes;
  const size_t bytes = (entries_bytes + kFooterTrailerBytes + kRecordAlign - 1) / kRecordAlign * kRecordAlign;
  std::vector<uint8_t> out(bytes, 0);
  for (size_t i = 0; i < footer.entries.size(); ++i) {
    const FooterEntry& entry = footer.entries[i];
    const std::span<uint8_t> at = std::span(out).subspan(i * kFooterEntryBytes, kFooterEntryBytes);
    PutField(at, 0, entry.key.bytes);
    PutField(at, 32, entry.offset);
    PutField(at, 40, entry.payload_len);
    PutField(at, 44, entry.block_index);
    PutField(at, 48, entry.parent_low64);
    PutField(at, 56, entry.flags);
  }
  const std::span<uint8_t> trailer = std::span(out).last(kFooterTrailerBytes);
  std::memcpy(trailer.data(), kFooterMagic.data(), kFooterMagic.size());
  PutField<uint64_t>(trailer, 8, footer.entries.size());
  PutField(trailer, 16, footer.footer_offset);
  PutField(trailer, 24, footer.live_bytes);
  PutField(trailer, 32, footer.sealed_unix_ns);
  PutField(trailer, 48, HeaderHash(std::span(out).first(entries_bytes)));
  PutField(trailer, 56, HeaderHash(trailer.first(56)));
  return out;
}

Result<Footer> DecodeFooter(std::span<const uint8_t> file) {
  if (file.size() < kSegmentHeaderBytes + kRecordAlign || file.size() % kRecordAlign != 0) return BadModel("the footer is cut off");
  const std::span<const uint8_t> trailer = file.last(kFooterTrailerBytes);
  if (!HasText(trailer, kFooterMagic)) return BadModel("the footer is missing");
  if (GetField<uint64_t>(trailer, 56) != HeaderHash(trailer.first(56))) return BadModel("the footer's trailer is damaged (checksum)");
  Footer footer;
  const auto count = GetField<uint64_t>(trailer, 8);
  footer.footer_offset = GetField<uint64_t>(trailer, 16);
  footer.live_bytes = GetField<uint64_t>(trailer, 24);
  footer.sealed_unix_ns = GetField<int64_t>(trailer, 32);
  const uint64_t end = file.size() - kFooterTrailerBytes;
  if (footer.footer_offset < kSegmentHeaderBytes || footer.footer_offset > end || footer.footer_offset % kRecordAlign != 0 ||
      count > (end - footer.footer_offset) / kFooterEntryBytes) {
    return BadModel("the footer's trailer does not fit the file");
  }
  const auto at = static_cast<size_t>(footer.footer_offset);
  const std::span<const uint8_t> entries = file.subspan(at, static_cast<size_t>(count) * kFooterEntryBytes);
  if (GetField<uint64_t>(trailer, 48) != HeaderHash(entries)) return BadModel("the footer's entries are damaged (checksum)");
  if (!IsZero(file.subspan(at + entries.size(), static_cast<size_t>(end) - at - entries.size()))) {
    return BadModel("the footer is damaged (padding)");
  }
  footer.entries.resize(static_cast<size_t>(count));
  for (size_t i = 0; i < footer.entries.size(); ++i) {
    const std::span<const uint8_t> bytes = entries.subspan(i * kFooterEntryBytes, kFooterEntryBytes);
    FooterEntry& entry = footer.entries[i];
    entry.key.bytes = GetField<std::array<uint8_t, 32>>(bytes, 0);
    entry.offset = GetField<uint64_t>(bytes, 32);
    entry.payload_len = GetField<uint32_t>(bytes, 40);
    entry.block_index = GetField<uint32_t>(bytes, 44);
    entry.parent_low64 = GetField<uint64_t>(bytes, 48);
    entry.flags = GetField<uint32_t>(bytes, 56);
    if (entry.offset < kSegmentHeaderBytes || entry.offset % kRecordAlign != 0 || entry.offset > footer.footer_offset ||
        RecordBytes(entry.payload_len) > footer.footer_offset - entry.offset) {
      return BadModel(fmt::format("entry {} of the footer does not fit the file", i));
    }
  }
  return footer;
}

Result<RecordHeader> CheckRecord(std::span<const uint8_t> file, uint64_t offset) {
  if (offset > file.size()) return BadModel("the record is cut off");
  const std::span<const uint8_t> bytes = file.subspan(static_cast<size_t>(offset));
  DI_ASSIGN_OR_RETURN(const RecordHeader header, DecodeRecordHeader(bytes));
  if (RecordBytes(header.payload_len) > bytes.size()) return BadModel("the record is cut off");
  if (PayloadHash(bytes.subspan(kRecordHeaderBytes, header.payload_len)) != header.payload_hash) {
    return BadModel("the payload is damaged (checksum)");
  }
  return header;
}

uint64_t ScanRecords(std::span<const uint8_t> file, const std::function<void(const RecordHeader&, uint64_t)>& visit) {
  uint64_t offset = kSegmentHeaderBytes;
  while (offset < file.size()) {
    const Result<RecordHeader> header = CheckRecord(file, offset);
    if (!header.ok()) break;
    visit(*header, offset);
    offset += RecordBytes(header->payload_len);
  }
  return std::min<uint64_t>(offset, file.size());
}

}  // namespace deepinfer::kvstore
