// SPDX-License-Identifier: Apache-2.0
//
// What a store does with its files when it is opened: seals what a crash left open, puts into the index what the index does
// not know (all of it when the index was lost), drops from the index what has no file, and moves damaged files away.
#pragma once

#include <string>
#include <vector>

#include "kvstore/block_index.h"
#include "kvstore/file_ops.h"
#include "kvstore/store_root.h"

namespace deepinfer::kvstore {

struct RecoveryReport {
  uint64_t sealed_segments = 0;     // were open
  uint64_t cut_bytes = 0;           // behind the last intact record of those
  uint64_t indexed_segments = 0;    // were not known
  uint64_t added_blocks = 0;
  uint64_t lost_segments = 0;       // known, but without a file
  uint64_t quarantined_segments = 0;
  uint64_t scanned_bytes = 0;
  std::vector<std::string> problems;  // one line each, with the file
};

Status RecoverStore(const StoreRoot& root, FileOps& files, BlockIndex& index, int64_t now_unix_ns, RecoveryReport& report);

// One open file (absolute stem): intact records, cut and sealed; `end` is where the footer begins. Removes a file without
// records (then `entries` is empty).
Status SealOpenFile(FileOps& files, const std::string& stem, int64_t now_unix_ns, std::vector<FooterEntry>& entries, uint64_t& end,
                    uint64_t& cut_bytes);

// Moves a segment file (relative stem) to quarantine/.
Status QuarantineFile(const StoreRoot& root, FileOps& files, const std::string& stem, const std::string& suffix);

}  // namespace deepinfer::kvstore
