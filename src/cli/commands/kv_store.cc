// SPDX-License-Identifier: Apache-2.0
//
// kv-store stats, scrub, gc, purge: what an operator does to the directory of a persistent prefix cache that no server has
// open.
#include <string>

#include <fmt/format.h>

#include "cli/commands.h"
#include "core/byte_size.h"
#include "core/escape.h"
#include "core/json.h"
#include "kvstore/block_store.h"

namespace deepinfer::cli {

namespace {

using namespace kvstore;

Result<std::unique_ptr<BlockStore>> OpenStore(const Invocation& invocation) {
  StoreOptions options;
  options.root = invocation.args[0];
  options.may_create = false;
  options.payload_bytes = 1;  // nothing is offered or loaded here
  options.run_gc = false;
  return BlockStore::Open(options);
}

std::string_view StateName(SegmentState state) {
  return state == SegmentState::kOpen ? "open" : state == SegmentState::kSealed ? "sealed" : "dying";
}

Json RecoveryJson(const RecoveryReport& report) {
  return {{"sealed_segments", report.sealed_segments},   {"cut_bytes", report.cut_bytes},
          {"indexed_segments", report.indexed_segments}, {"added_blocks", report.added_blocks},
          {"lost_segments", report.lost_segments},       {"quarantined_segments", report.quarantined_segments}};
}

Status RunStats(Invocation& invocation) {
  DI_ASSIGN_OR_RETURN(const auto store, OpenStore(invocation));
  DI_ASSIGN_OR_RETURN(const std::vector<SegmentRow> rows, store->index().Segments());
  const StoreStats stats = store->Stats();
  if (invocation.config.output.json) {
    Json classes = Json::object(), segments = Json::array();
    for (int i = 0; i < kNumClasses; ++i) classes[std::string(ClassName(static_cast<RetentionClass>(i)))] = stats.live_bytes[static_cast<size_t>(i)];
    for (const SegmentRow& row : rows) {
      segments.push_back({{"path", row.stem}, {"state", StateName(row.state)}, {"bytes", row.bytes}, {"live_bytes", row.live_bytes},
                          {"live_blocks", row.live_count}, {"created_s", row.created_s}});
    }
    invocation.out.Line(DumpJson({{"store", UuidText(store->root().uuid())}, {"blocks", stats.num_blocks}, {"live_bytes", classes},
                                  {"segments", segments}, {"recovery", RecoveryJson(store->recovery())}}));
    return Status::Ok();
  }
  invocation.out.Line(fmt::format("store {}: {} blocks in {} segments", UuidText(store->root().uuid()), stats.num_blocks, rows.size()));
  for (int i = 0; i < kNumClasses; ++i) {
    invocation.out.Line(fmt::format("{:<8}{:>16} bytes alive", ClassName(static_cast<RetentionClass>(i)), stats.live_bytes[static_cast<size_t>(i)]));
  }
  for (const SegmentRow& row : rows) {
    invocation.out.Line(fmt::format("{:<48} {:<7}{:>14} bytes, {:>14} alive in {} blocks", Escape(row.stem), StateName(row.state), row.bytes,
                                    row.live_bytes, row.live_count));
  }
  return Status::Ok();
}

Status RunScrub(Invocation& invocation) {
  DI_ASSIGN_OR_RETURN(const auto store, OpenStore(invocation));
  DI_ASSIGN_OR_RETURN(VerifyReport report, store->Verify());
  // Opening it has found what was wrong with whole files.
  report.problems.insert(report.problems.begin(), store->recovery().problems.begin(), store->recovery().problems.end());
  if (invocation.config.output.json) {
    invocation.out.Line(DumpJson({{"segments", report.segments}, {"blocks", report.blocks}, {"bytes", report.bytes}, {"problems", report.problems}}));
  } else {
    for (const std::string& problem : report.problems) invocation.out.Line(Escape(problem));
    invocation.out.Line(fmt::format("{} blocks, {} bytes in {} segments read; {} problems", report.blocks, report.bytes, report.segments,
                                    report.problems.size()));
  }
  if (!report.problems.empty()) invocation.exit_code = 1;
  return Status::Ok();
}

Status RunGc(Invocation& invocation) {
  DI_ASSIGN_OR_RETURN(const auto store, OpenStore(invocation));
  DI_RETURN_IF_ERROR(store->RunGc(true));
  const StoreStats stats = store->Stats();
  if (invocation.config.output.json) {
    invocation.out.Line(DumpJson({{"evicted_blocks", stats.evicted_expired}, {"unlinked_segments", stats.unlinked_segments},
                                  {"compacted_segments", stats.compacted_segments}, {"blocks", stats.num_blocks}}));
  } else {
    invocation.out.Line(fmt::format("{} blocks expired, {} files removed, {} copied together; {} blocks are left", stats.evicted_expired,
                                    stats.unlinked_segments, stats.compacted_segments, stats.num_blocks));
  }
  return Status::Ok();
}

Result<Key256> ParseKey(const std::string& hex) {
  Key256 key;
  for (size_t i = 0; i < hex.size() && i < 64; ++i) {
    const char c = hex[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return InvalidArgument(fmt::format("\"{}\" is no key: 64 digits 0-9a-f are expected", Escape(hex)));
    key.bytes[i / 2] = static_cast<uint8_t>(key.bytes[i / 2] << 4 | digit);
  }
  if (hex.size() != 64) return InvalidArgument(fmt::format("\"{}\" is no key: 64 digits 0-9a-f are expected", Escape(hex)));
  return key;
}

Status RunPurge(Invocation& invocation) {
  const std::string kind = invocation.args[1], value = invocation.args[2];
  // Wrong words are found before anything is touched.
  Key256 key;
  RetentionClass retention = RetentionClass::kChat;
  if (kind == "model" || kind == "key") {
    DI_ASSIGN_OR_RETURN(key, ParseKey(value));
  } else if (kind == "class") {
    DI_ASSIGN_OR_RETURN(retention, ParseClass(value));
  } else if (kind != "domain") {
    return InvalidArgument(fmt::format("\"{}\" cannot be purged; domain, model, class and key can", Escape(kind)));
  }
  DI_ASSIGN_OR_RETURN(const auto store, OpenStore(invocation));
  const Result<uint64_t> count = kind == "model"   ? store->PurgeModel(key)
                                 : kind == "key"   ? store->PurgeKey(key)
                                 : kind == "class" ? store->PurgeClass(retention)
                                                   : store->PurgeDomain(DomainHash(value));
  if (!count.ok()) return count.status();
  if (invocation.config.output.json) {
    invocation.out.Line(DumpJson({{"purged_blocks", *count}}));
  } else {
    invocation.out.Line(fmt::format("{} blocks are purged; gc removes their files after two minutes", *count));
  }
  return Status::Ok();
}

}  // namespace

Command KvStoreStatsCommand() {
  return {.name = "kv-store stats",
          .summary = "blocks, bytes and segment files of the persistent prefix cache in DIR",
          .usage = "DIR",
          .min_args = 1,
          .max_args = 1,
          .run = RunStats,
          .arg_choices = {},
          .details = "Opening a store repairs it: files that a crash left open are sealed, a lost index is made again."};
}

Command KvStoreScrubCommand() {
  return {.name = "kv-store scrub",
          .summary = "read every byte of the prefix cache in DIR and take damaged blocks out; exit code 1 if there were any",
          .usage = "DIR",
          .min_args = 1,
          .max_args = 1,
          .run = RunScrub,
          .arg_choices = {},
          .details = ""};
}

Command KvStoreGcCommand() {
  return {.name = "kv-store gc",
          .summary = "drop expired blocks of the prefix cache in DIR and remove files without blocks",
          .usage = "DIR",
          .min_args = 1,
          .max_args = 1,
          .run = RunGc,
          .arg_choices = {},
          .details = "Files go two minutes after their last block. The time of day counts as right."};
}

Command KvStorePurgeCommand() {
  return {.name = "kv-store purge",
          .summary = "make blocks of the prefix cache in DIR unreachable at once",
          .usage = "DIR domain|model|class|key VALUE",
          .min_args = 3,
          .max_args = 3,
          .run = RunPurge,
          .arg_choices = {},
          .details = "VALUE: an isolation domain, a weights digest, a retention class (agent, chat, batch, pinned) or a block key.\n"
                     "Blocks whose domain is not known, because the index was made again, go with every purge of a domain."};
}

}  // namespace deepinfer::cli
