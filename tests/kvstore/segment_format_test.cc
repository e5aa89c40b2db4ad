// SPDX-License-Identifier: Apache-2.0
//
// K6 on bytes: whatever single bit changes, wherever a file ends, nothing wrong is read from it.
#include "kvstore/segment_format.h"

#include <gtest/gtest.h>

#include <random>

#include "kvstore/fields.h"

namespace deepinfer::kvstore {
namespace {

Key256 KeyOf(uint64_t seed) {
  std::mt19937_64 random(seed);
  Key256 key;
  for (uint8_t& byte : key.bytes) byte = static_cast<uint8_t>(random());
  return key;
}

struct Image {
  std::vector<uint8_t> bytes;
  uint64_t footer_offset = 0;
  std::vector<FooterEntry> entries;
};

// A sealed segment of records with payloads of different lengths.
Image MakeImage(int num_records) {
  Image image;
  image.bytes.resize(kSegmentHeaderBytes);
  SegmentHeader header;
  header.segment.fill(1);
  header.store.fill(2);
  header.created_unix_ns = 1'700'000'000'000'000'000;
  header.payload_bytes = 700;
  header.weights_digest = KeyOf(7);
  EncodeSegmentHeader(header, image.bytes);
  for (int i = 0; i < num_records; ++i) {
    std::vector<uint8_t> payload(static_cast<size_t>(i * 211 % 1400));
    std::mt19937 random(static_cast<uint32_t>(i));
    for (uint8_t& byte : payload) byte = static_cast<uint8_t>(random());
    RecordHeader record;
    record.key = KeyOf(100 + static_cast<uint64_t>(i));
    record.parent = KeyOf(99 + static_cast<uint64_t>(i));
    record.block_index = static_cast<uint32_t>(i);
    record.payload_len = record.raw_len = static_cast<uint32_t>(payload.size());
    record.payload_hash = PayloadHash(payload);
    const size_t at = image.bytes.size();
    image.bytes.resize(at + static_cast<size_t>(RecordBytes(record.payload_len)));
    EncodeRecordHeader(record, std::span(image.bytes).subspan(at, kRecordHeaderBytes));
    std::copy(payload.begin(), payload.end(), image.bytes.begin() + static_cast<std::ptrdiff_t>(at + kRecordHeaderBytes));
    image.entries.push_back({record.key, at, record.payload_len, record.block_index, KeyLow64(record.parent), 0});
  }
  image.footer_offset = image.bytes.size();
  const std::vector<uint8_t> footer = EncodeFooter({image.entries, image.footer_offset, 0, 5});
  image.bytes.insert(image.bytes.end(), footer.begin(), footer.end());
  return image;
}

TEST(SegmentFormat, RoundTrip) {
  const Image image = MakeImage(9);
  EXPECT_EQ(image.bytes.size() % kRecordAlign, 0u);
  const SegmentHeader header = DecodeSegmentHeader(image.bytes).value();
  EXPECT_EQ(header.payload_bytes, 700u);
  EXPECT_EQ(header.weights_digest, KeyOf(7));
  const Footer footer = DecodeFooter(image.bytes).value();
  EXPECT_EQ(footer.entries, image.entries);
  size_t count = 0;
  const uint64_t end = ScanRecords(image.bytes, [&](const RecordHeader& record, uint64_t offset) {
    EXPECT_EQ(record.key, image.entries[count].key);
    EXPECT_EQ(offset, image.entries[count].offset);
    ++count;
  });
  EXPECT_EQ(count, image.entries.size());
  EXPECT_EQ(end, image.footer_offset);
}

TEST(SegmentFormat, FieldsLieWhereTheSpecificationPutsThem) {
  const Image image = MakeImage(2);
  const std::span<const uint8_t> bytes(image.bytes);
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 8), "DIKVSEG1");
  EXPECT_EQ(GetField<uint32_t>(bytes, 8), 1u);
  EXPECT_EQ(GetField<uint32_t>(bytes, 12), 4096u);
  EXPECT_EQ(bytes[16], 1);
  EXPECT_EQ(bytes[32], 2);
  EXPECT_EQ(GetField<uint32_t>(bytes, 72), 700u);
  EXPECT_EQ(GetField<uint32_t>(bytes, 76), 512u);
  EXPECT_EQ(GetField<uint32_t>(bytes, 112), 1u);
  const auto record = bytes.subspan(static_cast<size_t>(image.entries[1].offset));
  EXPECT_EQ(std::string(record.begin(), record.begin() + 4), "DBLK");
  EXPECT_EQ(record[6], 1);
  EXPECT_EQ(GetField<uint32_t>(record, 72), 1u);
  EXPECT_EQ(GetField<uint32_t>(record, 76), 128u);
  EXPECT_EQ(GetField<uint32_t>(record, 80), 211u);
  EXPECT_EQ(std::string(bytes.end() - 64, bytes.end() - 56), "DIKVFTR1");
  // The record of the released FP4 layout.
  EXPECT_EQ(RecordBytes(113'920), 114'688u);
}

TEST(SegmentFormat, K6EveryFlippedBitOfHeaderRecordAndFooterIsFound) {
  const Image good = MakeImage(5);
  Image bad = good;
  const auto flip = [&](size_t byte, int bit) { bad.bytes[byte] = static_cast<uint8_t>(bad.bytes[byte] ^ (1 << bit)); };
  for (size_t byte = 0; byte < kSegmentHeaderBytes; ++byte) {
    for (int bit = 0; bit < 8; bit += byte < 140 || byte >= 4088 ? 1 : 5) {
      flip(byte, bit);
      ASSERT_FALSE(DecodeSegmentHeader(bad.bytes).ok()) << byte;
      flip(byte, bit);
    }
  }
  const FooterEntry& entry = good.entries[3];
  const auto begin = static_cast<size_t>(entry.offset);
  for (size_t byte = begin; byte < begin + kRecordHeaderBytes + entry.payload_len; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      flip(byte, bit);
      ASSERT_FALSE(CheckRecord(bad.bytes, entry.offset).ok()) << byte - begin;
      flip(byte, bit);
    }
  }
  for (size_t byte = static_cast<size_t>(good.footer_offset); byte < good.bytes.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      flip(byte, bit);
      ASSERT_FALSE(DecodeFooter(bad.bytes).ok()) << byte - good.footer_offset;
      flip(byte, bit);
    }
  }
  EXPECT_EQ(bad.bytes, good.bytes);
}

TEST(SegmentFormat, K6AFileCutAnywhereGivesItsWholeRecords) {
  const Image image = MakeImage(6);
  for (size_t size = 0; size < image.bytes.size(); size += 37) {
    const std::span<const uint8_t> cut(image.bytes.data(), size);
    EXPECT_FALSE(DecodeFooter(cut).ok()) << size;
    size_t expected = 0, count = 0;
    for (const FooterEntry& entry : image.entries) expected += entry.offset + RecordBytes(entry.payload_len) <= size ? 1 : 0;
    const uint64_t end = ScanRecords(cut, [&](const RecordHeader&, uint64_t) { ++count; });
    EXPECT_EQ(count, expected) << size;
    EXPECT_LE(end, size);
  }
}

TEST(SegmentFormat, AnotherVersionIsRefusedAndNotCalledDamaged) {
  const Image image = MakeImage(1);
  for (const size_t field : {size_t{8}, size_t{76}, size_t{112}, size_t{116}}) {
    std::vector<uint8_t> header(image.bytes.begin(), image.bytes.begin() + kSegmentHeaderBytes);
    header[field] ^= 2;
    EXPECT_EQ(DecodeSegmentHeader(header).status().code(), StatusCode::kBadModel) << field;
    PutField(std::span(header), 4088, HeaderHash(std::span(header).first(4088)));  // as its writer would
    EXPECT_EQ(DecodeSegmentHeader(header).status().code(), StatusCode::kUnimplemented) << field;
  }
}

}  // namespace
}  // namespace deepinfer::kvstore
