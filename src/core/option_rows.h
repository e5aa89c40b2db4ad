// SPDX-License-Identifier: Apache-2.0
//
// The parts of the option table: option_table.cc joins them. Included by the files of the table only.
#pragma once

#include <vector>

#include "core/options.h"

namespace deepinfer {

inline constexpr double kMaxInt32 = 2147483647.0;

// The field of a Config: DI_FIELD(model.threads).
#define DI_FIELD(path) (+[](Config& c) -> auto& { return c.path; })

std::vector<OptionSpec> EngineRows();    // option_table_engine.cc
std::vector<OptionSpec> GrammarRows();   // option_table_grammar.cc
std::vector<OptionSpec> ServeRows();     // option_table_serve.cc
std::vector<OptionSpec> DownloadRows();  // option_table_download.cc
std::vector<OptionSpec> LoadRows();      // option_table_load.cc
std::vector<OptionSpec> AcceptedRows();  // option_table_accepted.cc

}  // namespace deepinfer
