// SPDX-License-Identifier: Apache-2.0
//
// Keys, caches, selection and attention of the NVIDIA backend against the CPU backend: several sequences in one step, chunks and
// single rows, every record format.
#include <cstring>

#include "device_pair.h"

namespace deepinfer::cuda {
namespace {

using device::KeyFormat;

class CudaAttention : public OnBothDevices {};
INSTANTIATE_TEST_SUITE_P(Of, CudaAttention, testing::Values(Kernels::kGeneral, Kernels::kReleased, Kernels::kFast), KernelsName);

struct Widths {
  int heads, dim, rope, window, index_heads, index_dim, topk, block_size, keep_blocks;
};
const Widths kSmall = {4, 64, 16, 16, 16, 32, 16, 4, 8}, kDemo = {4, 512, 64, 128, 8, 128, 64, 8, 32}, kReleased = {64, 512, 64, 128, 32, 128, 512, 8, 2048};

// Sequences with caches full of random keys on one device.
struct World {
  World(Side& s, const Widths& w, const Arithmetic& arithmetic, std::vector<std::pair<int, int>> start_and_rows, int cache_ratio, bool fp4 = true)
      : side(s), widths(w), a(arithmetic), ratio(cache_ratio) {
    const bool q = a.quantize;
    ring.rows = w.window + 6;
    ring.window = w.window;
    ring.format = q ? KeyFormat::kMxFp8 : KeyFormat::kFloat;
    ring_bytes = ring.rows * device::KeyRecordBytes(ring.format, w.dim);
    const int64_t state_bytes = (ring_bytes + 31) / 32 * 32 + 7 * 2 * w.dim * 4;
    cache.ratio = ratio;
    cache.entries_per_block = 128 / ratio;
    cache.head_dim = w.dim;
    cache.index_dim = w.index_dim;
    cache.main_format = !q ? KeyFormat::kFloat : fp4 ? KeyFormat::kFp4E4m3 : KeyFormat::kMxFp8;
    cache.index_format = q ? KeyFormat::kFp4Pow2 : KeyFormat::kFloat;
    cache.main_offset = (cache.entries_per_block * device::KeyRecordBytes(cache.index_format, w.index_dim) + 31) / 32 * 32;
    cache.block_stride = (cache.main_offset + cache.entries_per_block * device::KeyRecordBytes(cache.main_format, w.dim) + 127) / 128 * 128;
    int64_t num_blocks = 1;
    for (const auto& [start, rows] : start_and_rows) num_blocks += (start + rows) / 128 + 1;
    pool_bytes = num_blocks * cache.block_stride;
    // A block's keys follow from its number. Any bytes are keys but for scales and codes that are not numbers: small exponents.
    std::vector<uint8_t> bytes;
    for (int64_t block = 0; block < num_blocks; ++block) {
      Random random(1000 + static_cast<uint64_t>(block));
      std::vector<uint8_t> one = random.Bytes(cache.block_stride);
      if (!q) {
        const auto floats = random.Floats(cache.block_stride / 4, 1.0f, false);
        std::memcpy(one.data(), floats.data(), one.size());
      } else {
        for (uint8_t& b : one) b = static_cast<uint8_t>((b & 0x87) | 0x30);
        for (int64_t e = 0; e < cache.entries_per_block; ++e) {
          for (int i = 0; i < w.index_dim / 32; ++i) one[static_cast<size_t>(cache.entries_per_block * (w.index_dim / 2) + e * (w.index_dim / 32) + i)] = static_cast<uint8_t>(124 + random.Bits() % 4);
          for (int i = 0; i < w.index_dim / 2; ++i) one[static_cast<size_t>(e * (w.index_dim / 2) + i)] = static_cast<uint8_t>(random.Bits());
          uint8_t* main = one.data() + cache.main_offset + e * device::KeyRecordBytes(cache.main_format, w.dim);
          if (fp4) {
            for (int i = 0; i < w.dim / 2; ++i) main[i] = static_cast<uint8_t>(random.Bits());
            for (int i = 0; i < w.dim / 16; ++i) main[w.dim / 2 + i] &= 0x7f;  // scales are positive
          } else {
            for (int i = 0; i < w.dim / 32; ++i) main[w.dim + i] = static_cast<uint8_t>(125 + random.Bits() % 3);
          }
        }
      }
      bytes.insert(bytes.end(), one.begin(), one.end());
    }
    pool = side.Put(bytes);
    cache.pool = pool;
    int32_t block = 1, row = 0;
    for (size_t s_idx = 0; s_idx < start_and_rows.size(); ++s_idx) {
      const auto [start, rows] = start_and_rows[s_idx];
      Random random(100 + s_idx);
      std::vector<int32_t> table;
      for (int i = 0; i <= (start + rows) / 128; ++i) table.push_back(block++);
      std::vector<uint8_t> state(static_cast<size_t>(state_bytes));
      if (q) {
        for (int64_t r = 0; r < ring.rows; ++r) {
          uint8_t* record = state.data() + r * device::KeyRecordBytes(ring.format, w.dim);
          for (int i = 0; i < w.dim; ++i) record[i] = static_cast<uint8_t>((random.Bits() & 0x87) | 0x30);
          for (int i = 0; i < w.dim / 32; ++i) record[w.dim + i] = static_cast<uint8_t>(126 + random.Bits() % 3);
        }
      } else {
        const auto floats = random.Floats(ring_bytes / 4, 1.0f, false);
        std::memcpy(state.data(), floats.data(), floats.size() * 4);
      }
      const auto floats = random.Floats(7 * 2 * w.dim, 1.0f, false);
      std::memcpy(state.data() + state_bytes - 7 * 2 * w.dim * 4, floats.data(), floats.size() * 4);
      device::SequenceRows r;
      r.row_begin = row;
      r.num_rows = rows;
      r.start = start;
      r.window_floor = s_idx == 1 ? std::max(0, start - 3) : 0;
      r.state = side.Put(state);
      r.block_table = side.Put(table);
      host_sequences.push_back(r);
      tables.push_back(table);
      for (int i = 0; i < rows; ++i) {
        host_positions.push_back(start + i);
        host_sequence_of.push_back(static_cast<int32_t>(s_idx));
      }
      for (int g = start / ratio; g < (start + rows) / ratio; ++g) {
        device::NewGroup group;
        group.last_row = row + (g + 1) * ratio - 1 - start;
        group.sequence = static_cast<int32_t>(s_idx);
        group.position = g * ratio;
        group.block = table[static_cast<size_t>(g / cache.entries_per_block)];
        group.entry = g % cache.entries_per_block;
        host_groups.push_back(group);
      }
      row += rows;
    }
    state_size = state_bytes;
    compressor_offset = state_bytes - 7 * 2 * w.dim * 4;
    step.num_rows = row;
    step.num_sequences = static_cast<int32_t>(host_sequences.size());
    step.sequences = side.Put(host_sequences);
    step.positions = side.Put(host_positions);
    step.row_sequence = side.Put(host_sequence_of);
    groups = side.Put(host_groups);
    std::vector<float> inverse;
    for (int i = 0; i < w.rope / 2; ++i) inverse.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(w.rope)));
    rope = static_cast<float*>(side.Make(int64_t{row} * w.rope * 4));
    side->RopeTable(step.positions, row, side.Put(inverse), w.rope, rope);
    std::vector<int32_t> group_positions;
    for (const auto& g : host_groups) group_positions.push_back(g.position);
    group_positions.push_back(0);
    group_rope = static_cast<float*>(side.Make(static_cast<int64_t>(group_positions.size()) * w.rope * 4));
    side->RopeTable(side.Put(group_positions), static_cast<int64_t>(host_groups.size()), side.Put(inverse), w.rope, group_rope);
  }

  Side& side;
  Widths widths;
  Arithmetic a;
  int ratio;
  device::WindowRing ring;
  device::KeyCache cache;
  device::Step step;
  std::vector<device::SequenceRows> host_sequences;
  std::vector<int32_t> host_positions, host_sequence_of;
  std::vector<device::NewGroup> host_groups;
  std::vector<std::vector<int32_t>> tables;
  device::NewGroup* groups = nullptr;
  uint8_t* pool = nullptr;
  float *rope = nullptr, *group_rope = nullptr;
  int64_t ring_bytes = 0, pool_bytes = 0, state_size = 0, compressor_offset = 0;
};

using Layout = std::vector<std::pair<int, int>>;

TEST_P(CudaAttention, KeysAndTheirRecords) {
  Random random(21);
  for (const Widths& w : {kSmall, kReleased}) {
    for (const Arithmetic& a : Arithmetics()) {
      for (const bool fp4 : {true, false}) {
        const Layout layout = {{0, 3}, {37, 1}, {130, 150}, {9, 2}};
        const int64_t rows = 156;
        const auto raw = random.Floats(rows * w.dim, 1.0f, a.round_bf16), norm = random.Floats(w.dim), query = random.Floats(rows * w.heads * w.dim, 1.0f, a.round_bf16);
        const auto products = random.Floats(rows * 2 * w.dim, 1.0f, false), index_norm = random.Floats(w.index_dim);
        std::vector<uint8_t> bytes[2];
        int at = 0;
        const auto both = OnBoth([&](Side& side) {
          World world(side, w, a, layout, 2, fp4);
          const auto count = static_cast<int64_t>(world.host_groups.size());
          const Act q = side.PutAct(query, w.heads * w.dim), keys = side.MakeAct(rows, w.dim), latent = side.MakeAct(count, w.dim);
          side->Rope(a, q, rows, w.heads, w.dim, w.rope, world.rope);
          side->WindowKeys(a, side.PutAct(raw, w.dim), side.Put(norm), 1e-20f, rows, w.dim, w.rope, world.rope, keys);
          side->StoreWindow(world.step, world.ring, w.dim, keys);
          side->PoolPairs(a, world.step, side.Put(products), w.dim, world.compressor_offset, 7, world.groups, count, latent);
          auto result = side.GetAct(latent, count, w.dim);
          const Act raw_index = side.PutAct(std::vector<float>(raw.begin(), raw.begin() + count * w.index_dim), w.index_dim);
          side->StoreIndexKeys(a, world.cache, raw_index, side.Put(index_norm), 1e-20f, world.groups, count, w.rope < w.index_dim ? w.rope : w.index_dim / 2, world.group_rope, Act());
          side->StoreCompressed(a, world.cache, latent, world.groups, count, w.rope, world.group_rope, Act());
          for (const auto& [act, n, width] : {std::tuple<Act, int64_t, int64_t>{q, rows, w.heads * w.dim}, {keys, rows, w.dim}}) {
            const auto values = side.GetAct(act, n, width);
            result.insert(result.end(), values.begin(), values.end());
          }
          bytes[at] = side.Get(world.pool, world.pool_bytes);
          for (const auto& s : world.host_sequences) {
            const auto state = side.Get(s.state, world.state_size);
            bytes[at].insert(bytes[at].end(), state.begin(), state.end());
          }
          ++at;
          return result;
        });
        ExpectNear(both, a.round_bf16 ? 5e-2 : a.quantize ? 2e-1 : 1e-5, std::to_string(w.dim));
        // Records differ only where a value lay on the border of two codes.
        size_t num_different = 0;
        for (size_t i = 0; i < bytes[0].size(); ++i) num_different += bytes[0][i] != bytes[1][i];
        EXPECT_LE(num_different, a.quantize ? bytes[0].size() / 2000 : bytes[0].size()) << w.dim;
      }
    }
  }
}

TEST_P(CudaAttention, SelectionIsTheSame) {
  Random random(22);
  struct Case {
    Widths w;
    Layout layout;
  };
  const Case cases[] = {{kSmall, {{0, 5}, {100, 1}, {333, 7}, {40, 3}}}, {kDemo, {{3000, 2}, {10, 4}, {700, 1}}}, {kReleased, {{40000, 1}, {600, 3}}}};
  for (const Case& c : cases) {
    for (const bool quantize : {true, false}) {
      if (!quantize && GetParam() != Kernels::kGeneral) continue;
      const Arithmetic a{quantize, quantize};
      const Widths& w = c.w;
      int64_t rows = 0;
      for (const auto& [start, n] : c.layout) rows += n;
      const auto query = random.Floats(rows * w.index_heads * w.index_dim), weight = random.Floats(rows * w.index_heads);
      const auto both = OnBoth([&](Side& side) {
        World world(side, w, a, c.layout, 1);
        const Act q = side.PutAct(query, w.index_heads * w.index_dim);
        side->IndexQuery(a, q, rows, w.index_heads, w.index_dim, std::min(w.rope, w.index_dim / 2), world.rope);
        device::SelectArgs args;
        args.query = q;
        args.weight = side.PutAct(weight, w.index_heads);
        args.heads = w.index_heads;
        args.topk = w.topk;
        args.cache = world.cache;
        for (const int32_t p : world.host_positions) args.max_groups = std::max<int64_t>(args.max_groups, p + 1);
        args.block_size = w.block_size;
        args.keep_blocks = w.keep_blocks;
        args.candidates = static_cast<int32_t*>(side.Make(rows * w.keep_blocks * 4));
        args.num_candidates = static_cast<int32_t*>(side.Make(rows * 4));
        args.selected = static_cast<int32_t*>(side.Make(rows * w.topk * 4));
        args.num_selected = static_cast<int32_t*>(side.Make(rows * 4));
        std::vector<int32_t> result;
        const auto keep = [&](const int32_t* counts, const int32_t* lists, int stride) {
          const auto n = side.Get(counts, rows), all = side.Get(lists, rows * stride);
          for (int64_t t = 0; t < rows; ++t) {
            result.push_back(n[static_cast<size_t>(t)]);
            for (int32_t i = 0; i < n[static_cast<size_t>(t)]; ++i) result.push_back(all[static_cast<size_t>(t * stride + i)]);
          }
        };
        for (const auto role : {device::SelectArgs::Candidates::kNone, device::SelectArgs::Candidates::kProduce, device::SelectArgs::Candidates::kConsume}) {
          args.role = role;
          side->Select(world.step, args);
          keep(args.num_selected, args.selected, w.topk);
        }
        keep(args.num_candidates, args.candidates, w.keep_blocks);
        return result;
      });
      if (quantize && (GetParam() == Kernels::kGeneral || w.index_heads != kReleased.index_heads)) {
        EXPECT_EQ(both.cpu, both.gpu) << w.index_dim;
      } else {
        // Sums have another order, but for those of whole numbers: near ties may fall differently.
        ASSERT_EQ(both.cpu.size(), both.gpu.size());
        size_t num_different = 0;
        for (size_t i = 0; i < both.cpu.size(); ++i) num_different += both.cpu[i] != both.gpu[i];
        EXPECT_LE(num_different, both.cpu.size() / 20);
      }
    }
  }
}

std::vector<float> Attend(Side& side, const Widths& w, const Arithmetic& a, const Layout& layout, const std::vector<float>& query,
                          const std::vector<float>& keys, const std::vector<float>& sink, bool is_draft, bool fp4, int64_t rows) {
  World world(side, w, a, layout, 2, fp4);
  std::vector<int32_t> selected(static_cast<size_t>(rows * w.topk)), counts;
  for (int64_t t = 0; t < rows; ++t) {
    const int visible = (world.host_positions[static_cast<size_t>(t)] + 1) / 2, n = std::min(visible, w.topk);
    counts.push_back(n);
    for (int i = 0; i < n; ++i) selected[static_cast<size_t>(t * w.topk + i)] = static_cast<int32_t>(int64_t{i} * visible / n);
  }
  device::AttentionArgs args;
  args.heads = w.heads;
  args.head_dim = w.dim;
  args.rope_dim = w.rope;
  args.query = side.PutAct(query, w.heads * w.dim);
  args.new_keys = side.PutAct(keys, w.dim);
  args.ring = world.ring;
  if (!is_draft) {
    args.compressed = &world.cache;
    args.selected = side.Put(selected);
    args.num_selected = side.Put(counts);
    args.selected_stride = w.topk;
  }
  args.sink = side.Put(sink);
  args.rope = world.rope;
  args.is_draft_block = is_draft;
  args.out = side.MakeAct(rows, w.heads * w.dim);
  side->Attention(a, world.step, args);
  return side.GetAct(args.out, rows, w.heads * w.dim);
}

TEST_P(CudaAttention, WindowAndSelectedKeys) {
  Random random(23);
  for (const Widths& w : {kSmall, kDemo, kReleased}) {
    const Layout layout = {{0, 5}, {1200, 1}, {70, 20}, {300, 2}};
    const int64_t rows = 28;
    for (const Arithmetic& a : Arithmetics()) {
      for (const bool is_draft : {false, true}) {
        for (const bool fp4 : {true, false}) {
          const auto query = random.Floats(rows * w.heads * w.dim, 0.5f, a.round_bf16), keys = random.Floats(rows * w.dim, 1.0f, a.round_bf16), sink = random.Floats(w.heads);
          ExpectNear(OnBoth([&](Side& side) { return Attend(side, w, a, layout, query, keys, sink, is_draft, fp4, rows); }), a.round_bf16 ? 4e-2 : 3e-5,
                     std::to_string(w.heads) + " heads of " + std::to_string(w.dim) + (is_draft ? ", drafts" : ""));
        }
      }
    }
    // One row alone gives the bits it gives among others.
    Side side(*Gpu());
    const auto query = random.Floats(rows * w.heads * w.dim), keys = random.Floats(rows * w.dim), sink = random.Floats(w.heads);
    const auto all = Attend(side, w, kRelease, {{1200, 1}, {70, 20}}, query, keys, sink, false, true, 21);
    const auto one = Attend(side, w, kRelease, {{1200, 1}}, query, keys, sink, false, true, 1);
    EXPECT_EQ(0, std::memcmp(all.data(), one.data(), one.size() * sizeof(float))) << w.dim;
  }
}

}  // namespace
}  // namespace deepinfer::cuda
