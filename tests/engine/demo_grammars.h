// SPDX-License-Identifier: Apache-2.0
//
// The compile service of the demo model's tokenizer, for tests; one for all of a process.
#pragma once

#include <memory>

#include "constrain/compile_service.h"
#include "constrain/tokenizer_view.h"
#include "constrain/xgrammar_backend.h"
#include "engine/real_models.h"

namespace deepinfer::engine {

inline std::shared_ptr<constrain::CompileService> DemoGrammars() {
  static const auto service = std::make_shared<constrain::CompileService>(
      [] {
        const auto words = text::Tokenizer::Load(DemoDir()).value();
        const int width = model::ModelConfig::Load(DemoDir()).value().vocab_size;
        return constrain::MakeXgrammarBackend(constrain::MakeTokenizerView(*words, constrain::ViewKind::kPlain, width),
                                              constrain::MakeTokenizerView(*words, constrain::ViewKind::kTags, width));
      },
      constrain::CompileServiceOptions());
  return service;
}

}  // namespace deepinfer::engine
