// SPDX-License-Identifier: Apache-2.0
//
// K14: segment files of unknown origin. Nothing is read outside of them, and what passes its checksums is what its writer
// would write again.
#include <cstdint>
#include <span>
#include <vector>

#include "core/check.h"
#include "kvstore/segment_format.h"

using namespace deepinfer::kvstore;

namespace {

// Checksums stop random bytes at the door: with the first byte's bits set, those of the header, of the first record and of the
// trailer are put right first, so that what is behind them is reached.
void PutRight(uint8_t which, std::vector<uint8_t>& file) {
  const auto put = [&](size_t at, uint64_t hash) {
    for (size_t i = 0; i < 8; ++i) file[at + i] = static_cast<uint8_t>(hash >> (8 * i));
  };
  if ((which & 1) != 0 && file.size() >= kSegmentHeaderBytes) put(4088, HeaderHash(std::span(file).first(4088)));
  if ((which & 2) != 0 && file.size() >= kSegmentHeaderBytes + kRecordHeaderBytes) {
    put(kSegmentHeaderBytes + 184, HeaderHash(std::span(file).subspan(kSegmentHeaderBytes, 184)));
  }
  if ((which & 4) != 0 && file.size() >= kFooterTrailerBytes) {
    put(file.size() - 8, HeaderHash(std::span(file).subspan(file.size() - kFooterTrailerBytes, 56)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::vector<uint8_t> file(data + 1, data + size);
  PutRight(data[0], file);
  if (const auto header = DecodeSegmentHeader(file); header.ok()) {
    std::vector<uint8_t> again(kSegmentHeaderBytes);
    EncodeSegmentHeader(*header, again);
    DI_CHECK(*DecodeSegmentHeader(again) == *header);
  }
  if (const auto footer = DecodeFooter(file); footer.ok()) {
    for (const FooterEntry& entry : footer->entries) {
      DI_CHECK(entry.offset + RecordBytes(entry.payload_len) <= footer->footer_offset);
      (void)CheckRecord(file, entry.offset).ok();
    }
    DI_CHECK(EncodeFooter(*footer).size() <= file.size());
  }
  uint64_t end = kSegmentHeaderBytes;
  const uint64_t stopped = ScanRecords(file, [&](const RecordHeader& header, uint64_t offset) {
    DI_CHECK(offset == end && offset + RecordBytes(header.payload_len) <= file.size());
    std::vector<uint8_t> again(kRecordHeaderBytes);
    EncodeRecordHeader(header, again);
    DI_CHECK(*DecodeRecordHeader(again) == header);
    end += RecordBytes(header.payload_len);
  });
  DI_CHECK(stopped <= file.size());
  return 0;
}
