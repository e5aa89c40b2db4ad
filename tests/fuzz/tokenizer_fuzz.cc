// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as text: encoding, with and without added tokens, gives the text back (ill-formed parts as U+FFFD), safe cuts
// change nothing, and the stream of a detokenizer adds up to Decode.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/utf8.h"
#include "text/tokenizer.h"
#include "text/tokenizer_scanner.h"

namespace {

using deepinfer::text::Detokenizer;
using deepinfer::text::Tokenizer;

void Require(bool condition) {
  if (!condition) std::abort();
}

// 256 bytes, a few merges that conflict, and added tokens that are prefixes of each other.
std::string SmallTokenizer() {
  std::string vocab;
  int next_id = 0;
  const auto add = [&](const std::string& spelling) {
    vocab += (vocab.empty() ? "\"" : ",\"") + spelling + "\":" + std::to_string(next_id++);
  };
  uint32_t other = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool is_printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    std::string spelling = b == '"' || b == '\\' ? "\\" : "";
    deepinfer::AppendUtf8(is_printable ? b : other++, spelling);
    add(spelling);
  }
  std::string merges;
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{
           {"a", "b"}, {"b", "c"}, {"a", "a"}, {"aa", "aa"}, {"Ġ", "a"}, {"ð", "Ł"}, {"ðŁ", "ĺ"}, {"ab", "c"}, {"-", "-"}}) {
    add(left + right);
    merges += (merges.empty() ? "\"" : ",\"") + left + " " + right + "\"";
  }
  std::string added;
  for (const char* content : {"<a>", "<a>b", "b<c>", "｜D｜", "</think>"}) {
    added += added.empty() ? "" : ",";
    added += "{\"id\":" + std::to_string(next_id++) + ",\"content\":\"" + content + "\",\"special\":" +
             (next_id % 2 == 0 ? "true}" : "false}");
  }
  return "{\"added_tokens\":[" + added +
         R"(],"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}"},)"
         R"("behavior":"Isolated","invert":false},{"type":"Split","pattern":{"Regex":"[一-龥぀-ゟ゠-ヿ]+"},"behavior":)"
         R"("Isolated","invert":false},{"type":"Split","pattern":{"Regex":"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za)"
         R"(-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},)"
         R"("behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)"
         R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)" +
         vocab + "},\"merges\":[" + merges + "]}}";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<Tokenizer> tokenizer =
      std::move(Tokenizer::FromJsonText(SmallTokenizer(), "small")).value();
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string text = deepinfer::ReplaceInvalidUtf8(bytes);

  const std::vector<int32_t> plain = tokenizer->EncodePlain(bytes);
  const std::vector<int32_t> full = tokenizer->EncodeFull(bytes);
  Require(tokenizer->Decode(plain) == text);
  Require(tokenizer->Decode(full) == text);
  for (const int32_t id : plain) Require(!tokenizer->IsAddedToken(id));

  const size_t cut = deepinfer::text::FindSafeCut(text, text.size() / 2, 16);
  Require(cut <= text.size());
  std::vector<int32_t> halves = tokenizer->EncodePlain(std::string_view(text).substr(0, cut));
  const std::vector<int32_t> second = tokenizer->EncodePlain(std::string_view(text).substr(cut));
  halves.insert(halves.end(), second.begin(), second.end());
  Require(halves == plain);

  // The bytes as token ids: any sequence of tokens, ill-formed ones too. The "a" at the end completes nothing, so no
  // character is dropped.
  std::vector<int32_t> ids;
  for (size_t i = 0; i < size; ++i) ids.push_back(data[i] < 0x20 ? 256 + data[i] : data[i]);
  ids.push_back('a' - 0x21);
  ids.push_back('a');
  for (const bool skip_special : {false, true}) {
    Detokenizer detokenizer(*tokenizer, skip_special);
    std::string streamed;
    for (const int32_t id : ids) detokenizer.Push(id, streamed);
    detokenizer.Finish(streamed);
    Require(streamed == tokenizer->Decode(ids, skip_special));
  }
  return 0;
}
