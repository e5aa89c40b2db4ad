// SPDX-License-Identifier: Apache-2.0
//
// One pass, any chunking, token-by-token decoding, any neighbours, any number of threads: the same bits.
#include <cmath>
#include <random>

#include "model/golden_support.h"

namespace deepinfer::model {
namespace {

std::vector<int32_t> Prompt(const std::string& name) { return Golden("cases/" + name + ".safetensors").Ints("tokens"); }

// All logits of `ids`, fed in chunks of the given sizes (the last one repeats).
std::vector<float> ChunkedLogits(Model& model, std::span<const int32_t> ids, const std::vector<size_t>& sizes) {
  auto sequence = NewSequence(model);
  std::vector<float> all;
  size_t done = 0;
  for (size_t i = 0; done < ids.size(); ++i) {
    const size_t n = std::min(sizes[std::min(i, sizes.size() - 1)], ids.size() - done);
    SequenceChunk chunk;
    chunk.sequence = sequence.get();
    chunk.ids = ids.subspan(done, n);
    chunk.all_logits = true;
    const auto logits = model.Forward({&chunk, 1});
    EXPECT_TRUE(logits.ok()) << logits.status().ToString();
    all.insert(all.end(), logits->begin(), logits->end());
    done += n;
  }
  EXPECT_EQ(sequence->length(), static_cast<int64_t>(ids.size()));
  return all;
}

bool BitwiseEqual(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class CacheTest : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(Arithmetics, CacheTest, testing::Values(Numerics::kPlain, Numerics::kFp32, Numerics::kRelease),
                         [](const auto& param_info) { return std::string(FileName(param_info.param)); });

TEST_P(CacheTest, AnyChunkingGivesTheBitsOfOnePass) {
  Model& model = Nano(GetParam());
  const auto ids = Prompt("len0333");
  const auto whole = FullLogits(model, ids);
  // Odd borders split ratio-2 groups; small chunks cut n-grams and windows; 130 crosses a block.
  for (const std::vector<size_t>& sizes :
       std::vector<std::vector<size_t>>{{1}, {2}, {3}, {7}, {15, 16, 17}, {64}, {129, 130}, {1, 331}, {332, 1}}) {
    EXPECT_TRUE(BitwiseEqual(ChunkedLogits(model, ids, sizes), whole)) << "first chunk " << sizes[0];
  }
}

TEST_P(CacheTest, SmallInternalStepsGiveTheSameBits) {
  const auto ids = Prompt("len0333");
  const auto whole = FullLogits(Nano(GetParam()), ids);
  for (const int64_t rows : {int64_t{5}, int64_t{64}}) {
    const auto model = LoadNano(GetParam(), 1, rows);
    EXPECT_TRUE(BitwiseEqual(FullLogits(*model, ids), whole)) << rows;
  }
}

TEST_P(CacheTest, ThreadsDoNotChangeBits) {
  const auto ids = Prompt("len0333");
  const auto whole = FullLogits(Nano(GetParam()), ids);
  const auto model = LoadNano(GetParam(), 3);
  EXPECT_TRUE(BitwiseEqual(FullLogits(*model, ids), whole));
  EXPECT_TRUE(BitwiseEqual(ChunkedLogits(*model, ids, {100, 1, 1, 1, 30}), whole));
}

TEST_P(CacheTest, NeighboursDoNotChangeBits) {
  Model& model = Nano(GetParam());
  const std::vector<std::vector<int32_t>> prompts = {Prompt("len0333"), Prompt("len0096"), Prompt("len0040"), Prompt("len0017")};
  const size_t v = static_cast<size_t>(model.config().vocab_size);
  std::vector<std::vector<float>> alone, together(prompts.size());
  for (const auto& p : prompts) alone.push_back(FullLogits(model, p));

  std::mt19937 random(7);
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) sequences.push_back(NewSequence(model));
  for (;;) {
    std::vector<SequenceChunk> chunks;
    std::vector<size_t> owner;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const size_t done = static_cast<size_t>(sequences[i]->length()), left = prompts[i].size() - done;
      if (left == 0 || random() % 4 == 0) continue;
      SequenceChunk chunk;
      chunk.sequence = sequences[i].get();
      chunk.ids = std::span(prompts[i]).subspan(done, std::min<size_t>(left, random() % 3 == 0 ? 1 : 1 + random() % 40));
      chunk.all_logits = true;
      chunks.push_back(chunk);
      owner.push_back(i);
    }
    bool is_done = true;
    for (size_t i = 0; i < prompts.size(); ++i) is_done &= sequences[i]->length() == static_cast<int64_t>(prompts[i].size());
    if (is_done) break;
    if (chunks.empty()) continue;
    auto logits = model.Forward(chunks);
    ASSERT_TRUE(logits.ok()) << logits.status().ToString();
    size_t at = 0;
    for (size_t c = 0; c < chunks.size(); ++c) {
      const auto rows = logits->subspan(at, chunks[c].ids.size() * v);
      together[owner[c]].insert(together[owner[c]].end(), rows.begin(), rows.end());
      at += rows.size();
    }
  }
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_TRUE(BitwiseEqual(together[i], alone[i])) << i;
}

TEST_P(CacheTest, LastRowLogitsEqualAllLogits) {
  Model& model = Nano(GetParam());
  const auto ids = Prompt("len0096");
  const auto whole = FullLogits(model, ids);
  auto sequence = NewSequence(model);
  SequenceChunk chunk;
  chunk.sequence = sequence.get();
  chunk.ids = ids;
  const auto logits = model.Forward({&chunk, 1});
  ASSERT_TRUE(logits.ok());
  EXPECT_TRUE(BitwiseEqual(*logits, std::span(whole).last(static_cast<size_t>(model.config().vocab_size))));
}

// Rejected drafts: rows are written, taken back, and overwritten.
TEST_P(CacheTest, TruncatedTokensLeaveNoTrace) {
  Model& model = Nano(GetParam());
  const auto ids = Prompt("len0333");
  const size_t v = static_cast<size_t>(model.config().vocab_size);
  const auto whole = FullLogits(model, ids);
  auto sequence = NewSequence(model);
  std::mt19937 random(3);
  size_t done = 0;
  while (done < ids.size()) {
    const size_t n = std::min<size_t>(1 + random() % 4, ids.size() - done);
    std::vector<int32_t> step(ids.begin() + static_cast<long>(done), ids.begin() + static_cast<long>(done + n));
    const size_t wrong = random() % static_cast<size_t>(sequence->max_backtracking() - 1);
    for (size_t i = 0; i < wrong; ++i) step.push_back(static_cast<int32_t>(random() % v));
    SequenceChunk chunk;
    chunk.sequence = sequence.get();
    chunk.ids = step;
    chunk.all_logits = true;
    const auto logits = model.Forward({&chunk, 1});
    ASSERT_TRUE(logits.ok());
    ASSERT_TRUE(BitwiseEqual(logits->first(n * v), std::span(whole).subspan(done * v, n * v))) << done;
    done += n;
    ASSERT_TRUE(sequence->Truncate(static_cast<int64_t>(done)).ok());
  }
}

TEST_P(CacheTest, ImagePromptInChunks) {
  const Golden golden("image.safetensors");
  Model& model = Nano(GetParam());
  const auto ids = golden.Ints("tokens"), image = golden.Ints("image");
  const auto embeds = golden.Floats("embeds");
  const std::vector<uint8_t> is_image(image.begin(), image.end());
  const auto run = [&](size_t chunk_size) {
    auto sequence = NewSequence(model);
    std::vector<float> all;
    for (size_t done = 0; done < ids.size(); done += chunk_size) {
      const size_t n = std::min(chunk_size, ids.size() - done);
      SequenceChunk chunk;
      chunk.sequence = sequence.get();
      chunk.ids = std::span(ids).subspan(done, n);
      chunk.is_image = std::span(is_image).subspan(done, n);
      chunk.image_embeds = embeds.data() + done * static_cast<size_t>(model.config().hidden_size);
      chunk.all_logits = true;
      const auto logits = model.Forward({&chunk, 1});
      EXPECT_TRUE(logits.ok());
      all.insert(all.end(), logits->begin(), logits->end());
    }
    return all;
  };
  const auto whole = run(ids.size());
  for (const size_t n : {1, 4, 9, 14}) EXPECT_TRUE(BitwiseEqual(run(n), whole)) << n;
}

TEST_P(CacheTest, DraftsDoNotDependOnChunking) {
  Model& model = Nano(GetParam());
  const auto ids = Prompt("len0096");
  const auto draft = [&](size_t chunk_size) {
    auto sequence = NewSequence(model);
    for (size_t done = 0; done < ids.size(); done += chunk_size) {
      SequenceChunk chunk;
      chunk.sequence = sequence.get();
      chunk.ids = std::span(ids).subspan(done, std::min(chunk_size, ids.size() - done));
      EXPECT_TRUE(model.Forward({&chunk, 1}).ok());
    }
    return model.Draft(*sequence, 17, true).value();
  };
  const DraftResult whole = draft(ids.size());
  for (const size_t n : {1, 5, 30}) {
    const DraftResult chunked = draft(n);
    EXPECT_EQ(chunked.tokens, whole.tokens);
    EXPECT_TRUE(BitwiseEqual(chunked.logits, whole.logits)) << n;
    EXPECT_TRUE(BitwiseEqual(chunked.confidence_logits, whole.confidence_logits)) << n;
  }
}

// Drafts after a pause, wherever it begins and ends, are those without one.
TEST_P(CacheTest, PausedDraftsAreCaughtUpBitwise) {
  Model& model = Nano(GetParam());
  const auto ids = Prompt("len0333");
  const auto draft = [&](size_t pause_begin, size_t pause_end) {
    auto sequence = NewSequence(model);
    for (size_t done = 0; done < 300;) {
      // Prefill in chunks, then one by one.
      const size_t n = done < 120 ? 60 : 1;
      model.PauseDrafts(done >= pause_begin && done < pause_end);
      SequenceChunk chunk{.sequence = sequence.get(), .ids = std::span(ids).subspan(done, n)};
      EXPECT_TRUE(model.Forward({&chunk, 1}).ok());
      done += n;
    }
    model.PauseDrafts(false);
    return model.Draft(*sequence, ids[300], true).value();
  };
  const DraftResult without = draft(0, 0);
  const std::pair<size_t, size_t> pauses[] = {{0, 300}, {0, 60}, {60, 130}, {250, 300}, {290, 295}, {299, 300}, {130, 290}};
  for (const auto& [begin, end] : pauses) {
    SCOPED_TRACE(begin);
    const DraftResult paused = draft(begin, end);
    EXPECT_EQ(paused.tokens, without.tokens);
    EXPECT_TRUE(BitwiseEqual(paused.logits, without.logits));
    EXPECT_TRUE(BitwiseEqual(paused.confidence_logits, without.confidence_logits));
  }
}

// Takes the second best token of every row.
class SecondBest : public DraftChooser {
 public:
  explicit SecondBest(int vocab_size) : vocab_size_(vocab_size) {}
  void Choose(int position, float* logits, int64_t stride, std::span<int32_t> tokens) override {
    EXPECT_EQ(position, next_position_++);
    for (size_t i = 0; i < tokens.size(); ++i) {
      float* row = logits + static_cast<int64_t>(i) * stride;
      *std::max_element(row, row + vocab_size_) = -1e30f;
      tokens[i] = static_cast<int32_t>(std::max_element(row, row + vocab_size_) - row);
    }
  }

 private:
  int vocab_size_;
  int next_position_ = 0;
};

TEST_P(CacheTest, DraftsOfSeveralSequencesAreThoseOfEachAlone) {
  Model& model = Nano(GetParam());
  const int vocab_size = model.config().vocab_size, block = model.config().dspark_block_size;
  const auto ids = Prompt("len0333");
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<DraftChunk> chunks;
  for (const size_t length : {size_t{1}, size_t{97}, size_t{30}, size_t{200}}) {
    sequences.push_back(NewSequence(model));
    SequenceChunk chunk{.sequence = sequences.back().get(), .ids = std::span(ids).first(length)};
    ASSERT_TRUE(model.Forward({&chunk, 1}).ok());
    chunks.push_back({sequences.back().get(), ids[length]});
  }
  for (const int num_drafts : {block, 3, 1}) {
    SCOPED_TRACE(num_drafts);
    const size_t n = static_cast<size_t>(num_drafts);
    for (const bool chooses : {false, true}) {
      const auto draft = [&](std::span<const DraftChunk> some, std::vector<int32_t>& tokens, std::vector<float>& confidences) {
        tokens.resize(some.size() * n);
        confidences.resize(some.size() * n);
        SecondBest chooser(vocab_size);
        const Status status = model.DraftBatch(some, num_drafts, chooses ? &chooser : nullptr, tokens, confidences);
        EXPECT_TRUE(status.ok()) << status.ToString();
      };
      std::vector<int32_t> together, alone;
      std::vector<float> together_confidences, alone_confidences;
      draft(chunks, together, together_confidences);
      for (size_t i = 0; i < chunks.size(); ++i) {
        SCOPED_TRACE(i);
        draft({&chunks[i], 1}, alone, alone_confidences);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + static_cast<int64_t>(i * n)));
        EXPECT_TRUE(BitwiseEqual(alone_confidences, {together_confidences.begin() + static_cast<int64_t>(i * n),
                                                     together_confidences.begin() + static_cast<int64_t>((i + 1) * n)}));
        if (chooses) continue;
        // The block has all its rows whatever part of it is used.
        const DraftResult whole = model.Draft(*chunks[i].sequence, chunks[i].next_token).value();
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), whole.tokens.begin() + 1));
        EXPECT_TRUE(std::equal(alone_confidences.begin(), alone_confidences.end(), whole.confidence_logits.begin()));
      }
    }
  }
  std::vector<int32_t> tokens(64);
  std::vector<float> confidences(64);
  EXPECT_EQ(model.DraftBatch(chunks, 0, nullptr, tokens, confidences).field(), "num_drafts");
  EXPECT_EQ(model.DraftBatch(chunks, block + 1, nullptr, tokens, confidences).field(), "num_drafts");
}

// ---- decoder replay -----------------------------------------------------------------------------------------------------

std::unique_ptr<Model> LoadNanoWithReplay(Numerics numerics, DecoderReplay replay) {
  LoadOptions options;
  options.numerics = numerics;
  options.decoder_replay = replay;
  options.compressed_vocab = Golden("engram.safetensors").Ints("token_map");
  auto checkpoint = Checkpoint::Open(GoldenPath("nano"));
  auto model = Model::Load(std::move(checkpoint).value(), ModelConfig::Load(GoldenPath("nano")).value(),
                           TestDevice(1).value(), options);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return std::move(model).value();
}

// Logits of the last prompt row and of `ids` after the prompt, one by one, and the drafts at the end.
struct ReplayRun {
  std::vector<float> logits;
  DraftResult draft;
};
ReplayRun RunReplay(Model& model, std::span<const int32_t> prompt, std::span<const int32_t> next, size_t chunk_size) {
  ReplayRun run;
  auto sequence = NewSequence(model);
  for (size_t done = 0; done < prompt.size(); done += chunk_size) {
    SequenceChunk chunk;
    chunk.sequence = sequence.get();
    chunk.ids = prompt.subspan(done, std::min(chunk_size, prompt.size() - done));
    chunk.known_length = static_cast<int64_t>(prompt.size());
    chunk.no_logits = done + chunk.ids.size() < prompt.size();
    const auto logits = model.Forward({&chunk, 1});
    EXPECT_TRUE(logits.ok()) << logits.status().ToString();
    run.logits.insert(run.logits.end(), logits->begin(), logits->end());
  }
  for (const int32_t& id : next) {
    SequenceChunk chunk{.sequence = sequence.get(), .ids = {&id, 1}};
    const auto logits = model.Forward({&chunk, 1});
    EXPECT_TRUE(logits.ok());
    run.logits.insert(run.logits.end(), logits->begin(), logits->end());
  }
  run.draft = model.Draft(*sequence, 9, true).value();
  return run;
}

TEST_P(CacheTest, CompactReplayEqualsMaskInAnyChunking) {
  const auto ids = Prompt("len0333");
  const std::span<const int32_t> prompt = std::span(ids).first(300), next = std::span(ids).subspan(300, 20);
  const auto mask_model = LoadNanoWithReplay(GetParam(), DecoderReplay::kMask);
  const auto compact_model = LoadNanoWithReplay(GetParam(), DecoderReplay::kCompact);
  const ReplayRun mask = RunReplay(*mask_model, prompt, next, prompt.size());
  for (const size_t chunk_size : {size_t{300}, size_t{64}, size_t{271}, size_t{7}, size_t{1}}) {
    SCOPED_TRACE(chunk_size);
    const ReplayRun compact = RunReplay(*compact_model, prompt, next, chunk_size);
    EXPECT_TRUE(BitwiseEqual(compact.logits, mask.logits));
    EXPECT_TRUE(BitwiseEqual(compact.draft.logits, mask.draft.logits));
    EXPECT_EQ(compact.draft.tokens, mask.draft.tokens);
  }
  // A prompt that is kept whole is not changed at all.
  const std::span<const int32_t> small = std::span(ids).first(28);
  EXPECT_TRUE(BitwiseEqual(RunReplay(*compact_model, small, next, 28).logits, RunReplay(Nano(GetParam()), small, next, 28).logits));
}

TEST(Cache, ReplayKeepsAtLeastWindowAndBacktracking) {
  LoadOptions options;
  options.decoder_replay = DecoderReplay::kCompact;
  options.replay_keep_tokens = 21;  // window 16 + 6 - 1
  options.compressed_vocab = Golden("engram.safetensors").Ints("token_map");
  auto checkpoint = Checkpoint::Open(GoldenPath("nano"));
  auto model = Model::Load(std::move(checkpoint).value(), ModelConfig::Load(GoldenPath("nano")).value(),
                           TestDevice(1).value(), options);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
}

TEST(Cache, BlocksComeBack) {
  LoadOptions options;
  options.cache_tokens = 512;
  options.numerics = Numerics::kRelease;
  options.compressed_vocab = Golden("engram.safetensors").Ints("token_map");
  auto device = TestDevice(1);
  auto checkpoint = Checkpoint::Open(GoldenPath("nano"));
  auto model = Model::Load(std::move(checkpoint).value(), ModelConfig::Load(GoldenPath("nano")).value(), *device, options);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const auto ids = Prompt("len0333");
  for (int i = 0; i < 4; ++i) {
    auto a = NewSequence(**model), b = NewSequence(**model);
    SequenceChunk first{.sequence = a.get(), .ids = ids}, second{.sequence = b.get(), .ids = ids};
    ASSERT_TRUE((*model)->Forward({&first, 1}).ok());
    const auto full = (*model)->Forward({&second, 1});
    ASSERT_FALSE(full.ok());
    EXPECT_EQ(full.status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(b->length(), 0);
    ASSERT_TRUE(a->Truncate(0).ok());
    EXPECT_TRUE((*model)->Forward({&second, 1}).ok());
  }
}

TEST(Cache, RefusesWhatDoesNotFit) {
  Model& model = Nano(Numerics::kPlain);
  auto sequence = NewSequence(model);
  const std::vector<int32_t> too_long(static_cast<size_t>(model.max_model_len()) + 1, 5), bad = {5, 512}, none;
  SequenceChunk chunk{.sequence = sequence.get(), .ids = too_long};
  EXPECT_EQ(model.Forward({&chunk, 1}).status().code(), StatusCode::kResourceExhausted);
  chunk.ids = bad;
  EXPECT_EQ(model.Forward({&chunk, 1}).status().code(), StatusCode::kInvalidArgument);
  chunk.ids = none;
  EXPECT_EQ(model.Forward({&chunk, 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(sequence->Truncate(3).ok());
}

// What bench steps --context runs on: every key readable, steps of finite numbers, the same for a seed.
TEST_P(CacheTest, AFabricatedSequenceCanBeContinued) {
  Model& model = Nano(GetParam());
  const auto ids = Prompt("len0333");
  std::vector<float> first;
  for (const uint64_t seed : {1u, 1u, 2u}) {
    auto sequence = NewSequence(model);
    ASSERT_TRUE(sequence->Fabricate(ids, seed).ok());
    EXPECT_EQ(sequence->length(), static_cast<int64_t>(ids.size()));
    EXPECT_FALSE(sequence->Fabricate(ids, seed).ok());
    SequenceChunk chunk;
    chunk.sequence = sequence.get();
    chunk.ids = std::span(ids).first(3);
    const auto logits = model.Forward({&chunk, 1});
    ASSERT_TRUE(logits.ok()) << logits.status().ToString();
    for (const float v : *logits) ASSERT_TRUE(std::isfinite(v));
    if (first.empty()) first.assign(logits->begin(), logits->end());
    EXPECT_EQ(BitwiseEqual(*logits, first), seed == 1);
  }
}

}  // namespace
}  // namespace deepinfer::model
