// SPDX-License-Identifier: Apache-2.0
//
// Tokenizers of the golden data, loaded once per process, a minimal tokenizer.json to bend, and random text that visits
// every branch of the scanner.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/tokenizer.h"

namespace deepinfer::text {

const Tokenizer& ReleasedTokenizer();
const Tokenizer& NanoTokenizer();

// The lines of a file of tests/golden/tokenizer.
std::vector<Json> GoldenLines(const std::string& file_name);

// A complete small tokenizer: the 256 bytes, the given merges and added tokens (not special) behind them.
Json SmallTokenizerJson(const std::vector<std::pair<std::string, std::string>>& merges = {},
                        const std::vector<std::string>& added_tokens = {});

// Well-formed UTF-8 of about `num_chars` characters from all classes and from runs, spellings of added tokens included.
std::string RandomText(std::mt19937_64& random, int num_chars);

}  // namespace deepinfer::text
