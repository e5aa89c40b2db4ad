// SPDX-License-Identifier: Apache-2.0
//
// Speed of the tokenizer on one thread: encoding of English prose, Chinese prose, a mixture with code and one very long
// piece, with a cold and a warm piece cache; decoding, whole and streamed; loading. The texts are made from seeds.
// usage: tokenizer_bench   (DEEPINFER_BENCH_TOKENIZER: directory with another tokenizer.json)
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "core/file.h"
#include "core/utf8.h"
#include "text/tokenizer.h"

namespace deepinfer::text {
namespace {

std::string ModelDir() {
  const char* dir = std::getenv("DEEPINFER_BENCH_TOKENIZER");
  return dir != nullptr ? dir : DEEPINFER_SOURCE_DIR "/tests/golden/tokenizer";
}

const Tokenizer& SharedTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = std::move(Tokenizer::Load(ModelDir())).value();
  return *tokenizer;
}

// A generator of text with a vocabulary of `num_words` invented words used with Zipf-like frequencies, as in real prose:
// few words are common, most are rare.
class TextMaker {
 public:
  TextMaker(uint64_t seed, size_t num_words) : random_(seed) {
    static const char* const kCommon[] = {"the",  "of",   "and",  "to",    "a",     "in",   "that", "is",    "was",  "it",
                                          "for",  "with", "as",   "his",   "on",    "be",   "at",   "by",    "had",  "not",
                                          "from", "this", "have", "which", "there", "were", "they", "would", "when", "one"};
    static const char* const kSyllables[] = {"con", "ter", "al", "in",  "re", "tion", "er", "ment", "ly",  "ing",
                                             "est", "pro", "ab", "der", "an", "ful",  "is", "or",   "ness", "ta"};
    for (const char* word : kCommon) words_.push_back(word);
    while (words_.size() < num_words) {
      std::string word;
      const size_t num_syllables = 1 + random_() % 4;
      for (size_t i = 0; i < num_syllables; ++i) word += kSyllables[random_() % std::size(kSyllables)];
      words_.push_back(word);
    }
  }

  // Rank r with probability about 1 / r.
  const std::string& Word() {
    const double u = static_cast<double>(random_() >> 11) * 0x1p-53;
    const double rank = std::exp(u * std::log(static_cast<double>(words_.size())));
    return words_[std::min(words_.size() - 1, static_cast<size_t>(rank) - 1)];
  }

  void Sentence(std::string& out) {
    const size_t num_words = 5 + random_() % 20;
    for (size_t i = 0; i < num_words; ++i) {
      std::string word = Word();
      if (i == 0) word[0] = static_cast<char>(word[0] - 'a' + 'A');
      out += word;
      if (random_() % 40 == 0) out.append(" ").append(std::to_string(random_() % 10000));
      out += i + 1 == num_words ? (random_() % 8 == 0 ? ".\n\n" : ". ") : (random_() % 12 == 0 ? ", " : " ");
    }
  }

  void CodeLine(std::string& out) {
    const size_t depth = random_() % 4;
    out.append(4 * depth, ' ');
    switch (random_() % 4) {
      case 0:
        out += "if (" + Word() + "_" + Word() + " != nullptr) {\n";
        break;
      case 1:
        out += "return " + Word() + "(" + Word() + "[" + std::to_string(random_() % 64) + "]);\n";
        break;
      case 2:
        out += "const auto& " + Word() + " = this->" + Word() + "." + Word() + "();  // " + Word() + "\n";
        break;
      default:
        out += "}\n";
    }
  }

  // Mostly common words, now and then a rare character.
  void ChineseSentence(std::string& out) {
    static const char* const kWords[] = {
        "的",   "我们", "可以", "在",   "了",   "是",   "一个", "问题", "系统",   "使用", "数据", "和",   "模型", "需要",
        "这个", "方法", "中国", "经济", "发展", "研究", "技术", "不",   "有",     "进行", "通过", "对于", "学生", "工作",
        "时间", "公司", "市场", "社会", "提高", "如果", "因此", "并且", "人工智能", "语言", "计算", "网络", "结果", "分析",
        "程序", "设计", "环境", "文化", "历史", "重要", "能力", "服务", "他",     "她",   "说",   "会",   "到",   "年"};
    const size_t num_words = 5 + random_() % 20;
    for (size_t i = 0; i < num_words; ++i) {
      if (random_() % 30 == 0) {
        AppendUtf8(0x4e00 + static_cast<uint32_t>(random_() % 0x5000), out);
      } else {
        out += kWords[random_() % std::size(kWords)];
      }
      if (random_() % 7 == 0 && i + 1 < num_words) out += "，";
    }
    out += "。";
  }

 private:
  std::mt19937_64 random_;
  std::vector<std::string> words_;
};

constexpr size_t kTextBytes = size_t{1} << 22;

std::string English(uint64_t seed) {
  TextMaker maker(seed, 30000);
  std::string text;
  while (text.size() < kTextBytes) maker.Sentence(text);
  return text;
}

std::string Chinese(uint64_t seed) {
  TextMaker maker(seed, 100);
  std::string text;
  while (text.size() < kTextBytes) maker.ChineseSentence(text);
  return text;
}

std::string Mixed(uint64_t seed) {
  TextMaker maker(seed, 30000);
  std::string text;
  while (text.size() < kTextBytes) {
    for (int i = 0; i < 4; ++i) maker.Sentence(text);
    for (int i = 0; i < 12; ++i) maker.CodeLine(text);
    for (int i = 0; i < 6; ++i) maker.ChineseSentence(text);
    text += " Größe, naïveté, Привет мир 😀👍🏽\n";
  }
  return text;
}

std::string LongPiece(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text;
  while (text.size() < kTextBytes) text.push_back(static_cast<char>('a' + random() % 26));
  return text;
}

std::string LongCjkPiece(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text;
  while (text.size() < kTextBytes) AppendUtf8(0x4e00 + static_cast<uint32_t>(random() % 0x5000), text);
  return text;
}

std::string Dashes(uint64_t) { return std::string(kTextBytes, '-'); }

void SetSpeed(benchmark::State& state, size_t num_bytes, size_t num_tokens) {
  const double rounds = static_cast<double>(state.iterations());
  state.counters["MB/s"] = benchmark::Counter(rounds * static_cast<double>(num_bytes) / 1e6, benchmark::Counter::kIsRate);
  state.counters["Mtok/s"] = benchmark::Counter(rounds * static_cast<double>(num_tokens) / 1e6, benchmark::Counter::kIsRate);
  state.counters["B/tok"] = static_cast<double>(num_bytes) / static_cast<double>(num_tokens);
}

void BM_Encode(benchmark::State& state, std::string (*make_text)(uint64_t)) {
  const std::string text = make_text(1);
  size_t num_tokens = SharedTokenizer().EncodePlain(text).size();
  for (auto _ : state) num_tokens = SharedTokenizer().EncodePlain(text).size();
  SetSpeed(state, text.size(), num_tokens);
}

// Each round a new tokenizer, so nothing is in the piece cache.
void BM_EncodeCold(benchmark::State& state, std::string (*make_text)(uint64_t)) {
  const std::string text = make_text(2);
  size_t num_tokens = 0;
  for (auto _ : state) {
    state.PauseTiming();
    auto tokenizer = std::move(Tokenizer::Load(ModelDir())).value();
    state.ResumeTiming();
    num_tokens = tokenizer->EncodePlain(text).size();
    state.PauseTiming();
    tokenizer.reset();
    state.ResumeTiming();
  }
  SetSpeed(state, text.size(), num_tokens);
}

void BM_EncodeFull(benchmark::State& state, std::string (*make_text)(uint64_t)) {
  const std::string text = make_text(1);
  size_t num_tokens = SharedTokenizer().EncodePlain(text).size();
  for (auto _ : state) num_tokens = SharedTokenizer().EncodeFull(text).size();
  SetSpeed(state, text.size(), num_tokens);
}

void BM_EncodeThreads(benchmark::State& state) {
  const std::string text = Mixed(1);
  ThreadPool pool(static_cast<int>(state.range(0)));
  size_t num_tokens = 0;
  for (auto _ : state) num_tokens = SharedTokenizer().EncodePlain(text, &pool).size();
  SetSpeed(state, text.size(), num_tokens);
}

void BM_Decode(benchmark::State& state) {
  const std::string text = Mixed(1);
  const std::vector<int32_t> ids = SharedTokenizer().EncodePlain(text);
  for (auto _ : state) benchmark::DoNotOptimize(SharedTokenizer().Decode(ids));
  SetSpeed(state, text.size(), ids.size());
}

void BM_Stream(benchmark::State& state) {
  const std::string text = Mixed(1);
  const std::vector<int32_t> ids = SharedTokenizer().EncodePlain(text);
  std::string out;
  for (auto _ : state) {
    Detokenizer detokenizer(SharedTokenizer());
    for (const int32_t id : ids) {
      out.clear();
      detokenizer.Push(id, out);
    }
  }
  SetSpeed(state, text.size(), ids.size());
}

void BM_Load(benchmark::State& state) {
  const std::string json = ReadFile(ModelDir() + "/tokenizer.json", int64_t{1} << 28).value();
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::FromJsonText(json, "tokenizer.json"));
}

void BM_CompressedVocab(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(SharedTokenizer().BuildCompressedVocab());
}

BENCHMARK_CAPTURE(BM_Encode, english, English)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Encode, chinese, Chinese)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Encode, mixed, Mixed)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_EncodeCold, english, English)->Unit(benchmark::kMillisecond)->Iterations(5);
BENCHMARK_CAPTURE(BM_EncodeCold, mixed, Mixed)->Unit(benchmark::kMillisecond)->Iterations(5);
BENCHMARK_CAPTURE(BM_Encode, long_piece_letters, LongPiece)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Encode, long_piece_cjk, LongCjkPiece)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Encode, long_piece_dashes, Dashes)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_EncodeFull, mixed, Mixed)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeThreads)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Decode)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Stream)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Load)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_CompressedVocab)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace deepinfer::text

BENCHMARK_MAIN();
