// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "core/escape.h"
#include "core/file.h"
#include "core/utf8.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_bpe.h"
#include "text/tokenizer_file.h"
#include "text/tokenizer_scanner.h"

namespace deepinfer::text {

namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 28;
constexpr size_t kChunkBytes = size_t{1} << 16;  // target size of a tile of parallel encoding

// The byte-level alphabet: printable bytes stand for themselves, the k-th of the others is U+0100+k.
struct ByteAlphabet {
  static constexpr uint32_t kNumChars = 0x100 + 68;
  std::array<uint16_t, 256> char_of_byte;
  std::array<int16_t, kNumChars> byte_of_char;  // -1: not in the alphabet
};

constexpr ByteAlphabet MakeByteAlphabet() {
  ByteAlphabet a{};
  for (int16_t& b : a.byte_of_char) b = -1;
  uint16_t next_other = 0x100;
  for (uint16_t b = 0; b < 256; ++b) {
    const bool is_printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    a.char_of_byte[b] = is_printable ? b : next_other++;
    a.byte_of_char[a.char_of_byte[b]] = static_cast<int16_t>(b);
  }
  return a;
}
constexpr ByteAlphabet kAlphabet = MakeByteAlphabet();

// Appends the bytes that a vocabulary spelling stands for. A spelling with a character outside the alphabet stands for its
// own UTF-8 (returns false).
bool AppendTokenBytes(std::string_view spelling, std::string& out) {
  const size_t old_size = out.size();
  for (std::string_view rest = spelling; !rest.empty();) {
    const Utf8Char c = DecodeUtf8(rest);
    if (c.code_point >= ByteAlphabet::kNumChars || kAlphabet.byte_of_char[c.code_point] < 0) {
      out.resize(old_size);
      out += spelling;
      return false;
    }
    out.push_back(static_cast<char>(kAlphabet.byte_of_char[c.code_point]));
    rest.remove_prefix(c.num_bytes);
  }
  return true;
}

// Spelling -> index of its vocabulary entry; open addressing, used while loading only.
class SpellingIndex {
 public:
  explicit SpellingIndex(const TokenizerFile& file) : file_(file) {
    size_t num_slots = 16;
    while (num_slots < file.vocab.size() * 2) num_slots *= 2;
    slots_.resize(num_slots, -1);
  }
  // False if the spelling is there already.
  bool Insert(int32_t entry_idx) {
    int32_t& slot = slots_[SlotFor(file_.Spelling(file_.vocab[static_cast<size_t>(entry_idx)]))];
    if (slot >= 0) return false;
    slot = entry_idx;
    return true;
  }
  // The token id, -1 if there is none.
  int32_t Find(std::string_view spelling) const {
    const int32_t entry_idx = slots_[SlotFor(spelling)];
    return entry_idx >= 0 ? file_.vocab[static_cast<size_t>(entry_idx)].id : -1;
  }

 private:
  static uint64_t Hash(std::string_view s) {
    uint64_t h = s.size() * 0x9e3779b97f4a7c15u;
    while (!s.empty()) {
      uint64_t word = 0;
      const size_t n = std::min<size_t>(s.size(), 8);
      std::memcpy(&word, s.data(), n);
      h = (h ^ word) * 0xd6e8feb86659fd93u;
      h ^= h >> 32;
      s.remove_prefix(n);
    }
    return h;
  }
  size_t SlotFor(std::string_view spelling) const {
    size_t slot = Hash(spelling) & (slots_.size() - 1);
    while (slots_[slot] >= 0 && file_.Spelling(file_.vocab[static_cast<size_t>(slots_[slot])]) != spelling) {
      slot = (slot + 1) & (slots_.size() - 1);
    }
    return slot;
  }

  const TokenizerFile& file_;
  std::vector<int32_t> slots_;
};

// True if `text` is well-formed; ASCII eight bytes at a time.
bool IsWellFormed(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word;
    if (text.size() - at >= 8 && (std::memcpy(&word, text.data() + at, 8), (word & 0x8080808080808080u) == 0)) {
      at += 8;
      continue;
    }
    const Utf8Char c = DecodeUtf8(text.substr(at));
    if (!c.is_valid) return false;
    at += c.num_bytes;
  }
  return true;
}

}  // namespace

struct Tokenizer::Impl {
  enum TokenFlag : uint8_t { kDefined = 1, kAdded = 2, kSpecial = 4, kOwnSpelling = 8 };
  struct Token {
    uint32_t begin = 0;  // in token_bytes
    uint32_t length = 0;
    uint8_t flags = 0;
  };

  std::string token_bytes;
  std::vector<Token> tokens;  // by id
  std::unique_ptr<Bpe> bpe;
  AddedTokenTrie added;

  // A stretch of a prompt: plain text, or one added token (id >= 0).
  struct Stretch {
    std::string_view text;
    int32_t id = -1;
  };

  const Token* Find(int id) const {
    return id >= 0 && static_cast<size_t>(id) < tokens.size() ? &tokens[static_cast<size_t>(id)] : nullptr;
  }
  std::string_view BytesOf(const Token& token) const {
    return std::string_view(token_bytes).substr(token.begin, token.length);
  }

  Status Build(const TokenizerFile& file);
  Status AddVocab(const TokenizerFile& file, SpellingIndex& index);
  Status AddMerges(const TokenizerFile& file, const SpellingIndex& index);
  Status AddAddedTokens(const TokenizerFile& file, const SpellingIndex& index);

  void EncodePiecesOf(std::string_view text, IdBuffer& out) const {
    const char* text_end = text.data() + text.size();
    std::string_view batch[Bpe::kMaxBatch];
    size_t num_pieces = 0;
    ScanPieces(text, [&](const char* begin, const char* end) {
      batch[num_pieces++] = std::string_view(begin, static_cast<size_t>(end - begin));
      if (num_pieces < Bpe::kMaxBatch) return;
      bpe->Encode(batch, text_end, out);
      num_pieces = 0;
    });
    bpe->Encode(std::span(batch, num_pieces), text_end, out);
  }
  // Appends the stretches of text in which added tokens count.
  void SplitAtAddedTokens(std::string_view text, std::vector<Stretch>& out) const;
  std::vector<int32_t> EncodeStretches(const std::vector<Stretch>& stretches, ThreadPool* pool) const;
};

Status Tokenizer::Impl::AddVocab(const TokenizerFile& file, SpellingIndex& index) {
  int32_t max_id = -1;
  for (const auto& entry : file.vocab) max_id = std::max(max_id, entry.id);
  for (const auto& token : file.added_tokens) max_id = std::max(max_id, token.id);
  tokens.resize(static_cast<size_t>(max_id + 1));
  token_bytes.reserve(file.vocab_text.size());
  for (size_t i = 0; i < file.vocab.size(); ++i) {
    const auto& entry = file.vocab[i];
    const std::string_view spelling = file.Spelling(entry);
    if (!index.Insert(static_cast<int32_t>(i))) {
      return BadModel(fmt::format("token \"{}\" appears twice in \"model.vocab\"", Escape(spelling, 64)));
    }
    Token& token = tokens[static_cast<size_t>(entry.id)];
    if (token.flags != 0) {
      return BadModel(fmt::format("id {} of token \"{}\" belongs to another token too", entry.id, Escape(spelling, 64)));
    }
    token.begin = static_cast<uint32_t>(token_bytes.size());
    token.flags = kDefined;
    if (!AppendTokenBytes(spelling, token_bytes)) token.flags |= kOwnSpelling;
    token.length = static_cast<uint32_t>(token_bytes.size()) - token.begin;
  }
  return Status::Ok();
}

Status Tokenizer::Impl::AddMerges(const TokenizerFile& file, const SpellingIndex& index) {
  std::array<int32_t, 256> byte_ids;
  for (size_t b = 0; b < 256; ++b) {
    std::string spelling;
    AppendUtf8(kAlphabet.char_of_byte[b], spelling);
    byte_ids[b] = index.Find(spelling);
    if (byte_ids[b] < 0) return BadModel(fmt::format("\"model.vocab\" has no token for byte 0x{:02x}", b));
  }
  std::vector<Bpe::Merge> merges;
  merges.reserve(file.merges.size());
  for (const auto& merge : file.merges) {
    const Bpe::Merge m{index.Find(file.Left(merge)), index.Find(file.Right(merge)), index.Find(file.Result(merge))};
    if (m.left < 0 || m.right < 0 || m.result < 0) {
      const std::string_view missing = m.left < 0    ? file.Left(merge)
                                       : m.right < 0 ? file.Right(merge)
                                                     : file.Result(merge);
      return BadModel(
          fmt::format("merge {} needs the token \"{}\", which \"model.vocab\" lacks", merges.size(), Escape(missing, 64)));
    }
    merges.push_back(m);
  }
  std::vector<uint32_t> num_bytes;
  num_bytes.reserve(tokens.size());
  for (const Token& token : tokens) num_bytes.push_back(token.length);
  bpe = std::make_unique<Bpe>(byte_ids, merges, std::move(num_bytes));
  return Status::Ok();
}

Status Tokenizer::Impl::AddAddedTokens(const TokenizerFile& file, const SpellingIndex& index) {
  for (const auto& token_in_file : file.added_tokens) {
    const std::string& content = token_in_file.content;
    Token& token = tokens[static_cast<size_t>(token_in_file.id)];
    const int32_t vocab_id = index.Find(content);
    size_t length;
    const bool is_known = added.MatchAt(content, &length) >= 0 && length == content.size();
    if (is_known || (vocab_id >= 0 && vocab_id != token_in_file.id)) {
      return BadModel(fmt::format("added token \"{}\" has two ids", Escape(content, 64)));
    }
    if (token.flags != 0 && vocab_id != token_in_file.id) {
      return BadModel(fmt::format("id {} of added token \"{}\" belongs to another token too", token_in_file.id,
                                  Escape(content, 64)));
    }
    token.begin = static_cast<uint32_t>(token_bytes.size());
    token.length = static_cast<uint32_t>(content.size());
    token.flags = static_cast<uint8_t>(kDefined | kAdded | kOwnSpelling | (token_in_file.special ? kSpecial : 0));
    token_bytes += content;
    added.Add(content, token_in_file.id);
  }
  return Status::Ok();
}

Status Tokenizer::Impl::Build(const TokenizerFile& file) {
  SpellingIndex index(file);
  DI_RETURN_IF_ERROR(AddVocab(file, index));
  DI_RETURN_IF_ERROR(AddMerges(file, index));
  return AddAddedTokens(file, index);
}

void Tokenizer::Impl::SplitAtAddedTokens(std::string_view text, std::vector<Stretch>& out) const {
  for (size_t at = 0; at < text.size();) {
    size_t begin;
    size_t end;
    const int32_t id = added.FindNext(text, at, &begin, &end);
    if (begin > at) out.push_back({text.substr(at, begin - at)});
    if (id >= 0) out.push_back({{}, id});
    at = end;
  }
}

std::vector<int32_t> Tokenizer::Impl::EncodeStretches(const std::vector<Stretch>& stretches, ThreadPool* pool) const {
  size_t num_bytes = 0;
  for (const Stretch& s : stretches) num_bytes += s.text.size();
  if (pool == nullptr || pool->num_threads() == 1 || num_bytes < 2 * kChunkBytes) {
    IdBuffer out;
    out.Reserve(num_bytes / 4 + 64);
    for (const Stretch& s : stretches) s.id >= 0 ? out.Push(s.id) : EncodePiecesOf(s.text, out);
    return out.Take();
  }

  // Plain stretches are cut at safe borders, so every chunk gives the ids it would give as a part of the whole. A tile is
  // a run of chunks of about kChunkBytes together, because a chat prompt has many short stretches.
  std::vector<Stretch> chunks;
  for (const Stretch& s : stretches) {
    std::string_view rest = s.text;
    for (size_t target = kChunkBytes; target < rest.size();) {
      const size_t cut = FindSafeCut(rest, target, kChunkBytes);
      if (cut == rest.size()) {  // none in this window: the chunk reaches into the next one
        target += kChunkBytes;
        continue;
      }
      chunks.push_back({rest.substr(0, cut)});
      rest.remove_prefix(cut);
      target = kChunkBytes;
    }
    chunks.push_back({rest, s.id});
  }
  std::vector<size_t> tile_ends;  // in chunks
  size_t tile_bytes = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    tile_bytes += chunks[i].text.size() + 1;
    if (tile_bytes < kChunkBytes && i + 1 < chunks.size()) continue;
    tile_ends.push_back(i + 1);
    tile_bytes = 0;
  }
  std::vector<std::vector<int32_t>> ids(tile_ends.size());
  pool->ParallelFor(static_cast<int64_t>(tile_ends.size()), [&](int64_t tile, int) {
    const size_t t = static_cast<size_t>(tile);
    IdBuffer out;
    for (size_t i = t == 0 ? 0 : tile_ends[t - 1]; i < tile_ends[t]; ++i) {
      chunks[i].id >= 0 ? out.Push(chunks[i].id) : EncodePiecesOf(chunks[i].text, out);
    }
    ids[t] = out.Take();
  });
  std::vector<int32_t> all;
  size_t num_ids = 0;
  for (const auto& part : ids) num_ids += part.size();
  all.reserve(num_ids);
  for (const auto& part : ids) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_dir) {
  const std::string path = model_dir + "/tokenizer.json";
  DI_ASSIGN_OR_RETURN(const std::string text, ReadModelFile(model_dir, "tokenizer.json", kMaxFileBytes));
  return FromJsonText(text, path);
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromJsonText(std::string_view json_text, const std::string& origin) {
  DI_ASSIGN_OR_RETURN(const TokenizerFile file, ParseTokenizerFile(json_text, origin));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  if (Status status = tokenizer->impl_->Build(file); !status.ok())
    return Status(status.code(), fmt::format("{}: {}; {}", origin, status.message(), kTokenizerFileRemedy));
  return tokenizer;
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->tokens.size()); }

int Tokenizer::FindAddedToken(std::string_view content) const {
  size_t length;
  const int32_t id = impl_->added.MatchAt(content, &length);
  return length == content.size() ? id : -1;
}

bool Tokenizer::IsAddedToken(int id) const {
  const Impl::Token* token = impl_->Find(id);
  return token != nullptr && (token->flags & Impl::kAdded) != 0;
}

bool Tokenizer::IsSpecial(int id) const {
  const Impl::Token* token = impl_->Find(id);
  return token != nullptr && (token->flags & Impl::kSpecial) != 0;
}

std::string_view Tokenizer::TokenBytes(int id) const {
  const Impl::Token* token = impl_->Find(id);
  return token != nullptr ? impl_->BytesOf(*token) : std::string_view();
}

std::string Tokenizer::RawToken(int id) const {
  const Impl::Token* token = impl_->Find(id);
  if (token == nullptr) return {};
  const std::string_view bytes = impl_->BytesOf(*token);
  if ((token->flags & Impl::kOwnSpelling) != 0) return std::string(bytes);
  std::string spelling;
  for (const char b : bytes) AppendUtf8(kAlphabet.char_of_byte[static_cast<uint8_t>(b)], spelling);
  return spelling;
}

std::vector<int32_t> Tokenizer::EncodePlain(std::string_view text, ThreadPool* pool, bool* replaced) const {
  const bool is_well_formed = IsWellFormed(text);
  if (replaced != nullptr) *replaced = !is_well_formed;
  const std::string repaired = is_well_formed ? std::string() : ReplaceInvalidUtf8(text);
  return impl_->EncodeStretches({{is_well_formed ? text : repaired}}, pool);
}

std::vector<int32_t> Tokenizer::EncodeFull(std::string_view text, ThreadPool* pool, bool* replaced) const {
  const bool is_well_formed = IsWellFormed(text);
  if (replaced != nullptr) *replaced = !is_well_formed;
  const std::string repaired = is_well_formed ? std::string() : ReplaceInvalidUtf8(text);
  std::vector<Impl::Stretch> stretches;
  impl_->SplitAtAddedTokens(is_well_formed ? text : repaired, stretches);
  return impl_->EncodeStretches(stretches, pool);
}

Result<std::vector<int32_t>> Tokenizer::EncodePrompt(std::string_view prompt, std::span<const SpecialRange> ranges,
                                                     ThreadPool* pool) const {
  std::vector<Impl::Stretch> stretches;
  std::vector<std::string> repaired;  // ill-formed stretches; the vector never grows beyond this, so views stay good
  repaired.reserve(ranges.size() + 1);
  const auto add_plain = [&](size_t begin, size_t end) {
    std::string_view text = prompt.substr(begin, end - begin);
    if (!IsWellFormed(text)) text = repaired.emplace_back(ReplaceInvalidUtf8(text));
    if (!text.empty()) stretches.push_back({text});
  };
  size_t at = 0;
  for (const SpecialRange& range : ranges) {
    if (range.begin < at || range.end < range.begin || range.end > prompt.size()) {
      return Internal(fmt::format("special range [{}, {}) of a prompt of {} bytes is out of order or out of range",
                                  range.begin, range.end, prompt.size()));
    }
    add_plain(at, range.begin);
    const size_t first = stretches.size();
    impl_->SplitAtAddedTokens(prompt.substr(range.begin, range.end - range.begin), stretches);
    for (size_t i = first; i < stretches.size(); ++i) {
      if (stretches[i].id < 0) {
        return Internal(fmt::format("special range [{}, {}) of the prompt holds \"{}\", which is no added token of this model",
                                    range.begin, range.end, Escape(stretches[i].text, 64)));
      }
    }
    at = range.end;
  }
  add_plain(at, prompt.size());
  return impl_->EncodeStretches(stretches, pool);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  std::string run;  // bytes since the last added token
  for (const int32_t id : ids) {
    if (!IsAddedToken(id)) {
      run += TokenBytes(id);
      continue;
    }
    text += ReplaceInvalidUtf8(run);
    run.clear();
    if (!skip_special || !IsSpecial(id)) text += TokenBytes(id);
  }
  text += ReplaceInvalidUtf8(run);
  return text;
}

}  // namespace deepinfer::text
