// SPDX-License-Identifier: Apache-2.0
//
// Every environment variable of the specification (engine 4): known, with its default, and refused by name when its value
// is bad. Switches have no bad value: they are off for four spellings and on for all others.
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "core/options.h"

namespace deepinfer {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

struct Variable {
  const char* name;           // without DEEPINFER_
  const char* default_value;  // as OptionValueText shows it; "" = unset
  const char* bad_value;      // null: a switch, or any text
};

// In the order of the specification.
constexpr Variable kVariables[] = {
    {"ACCELERATOR", "auto", "abacus"},
    {"CPP_LOG_LEVEL", "info", "loud"},
    {"COMPUTE_SUM_SMALLER_PROBS", "false", nullptr},
    {"JIT_CACHE_DIR", "", nullptr},
    {"NCCL_NUM_SMS", "32", "0"},
    {"USERBUFFER_COMM_SMS", "0", "-1"},
    {"GLOO_TIMEOUT", "14400", "0"},
    {"REARRANGE_P2P_GROUPS", "1", "0"},
    {"OVERRIDE_NUM_EXTRA_EXPERTS", "0", "-1"},
    {"EXPERT_COUNT_WINDOW_SIZE", "100", "-1"},
    {"EXPERT_REARRANGEMENT_STEP_INTERVAL", "0", "-1"},
    {"REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE", "false", nullptr},
    {"MOE_LB_STAT_INTERVAL", "128", "0"},
    {"FORCE_IMBALANCE_RATIO", "0", "0.5"},
    {"FORCE_LOAD_BALANCE", "false", nullptr},
    {"SHOW_EPLB_DETAIL", "false", nullptr},
    {"PREFILL_MAX_SUM_SEQLEN_K", "", "0"},
    {"INDEX_ATTN_MEMORY_LIMIT", "10737418240", "0"},
    {"USE_NEXTN_DECODE", "", "-1"},
    {"ENABLE_MTP_VARLEN", "", nullptr},
    {"MAX_BACKTRACKING_TOKENS", "6", "-1"},
    {"DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "1.0", "1.0,hot"},
    {"ENGRAM_PAD_TOKEN", "2", "-1"},
    {"ENGRAM_FORCE_GPU_STORAGE", "false", nullptr},
    {"SAMPLER_FORCE_TOPK", "0", "16385"},
    {"DECODE_TOKEN_BLACKLIST", "", "5-3"},
    {"ENFORCE_EAGER", "false", nullptr},
    {"CUDAGRAPH_BATCH_SIZE_INTERVAL", "8", "0"},
    {"DFLASH_ENFORCE_EAGER", "false", nullptr},
    {"DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL", "8", "0"},
    {"DECODE_PERF_CACHE_DIR", "", nullptr},
    {"DECODE_PERF_CACHE_TTL_SEC", "3600", "-1"},
    {"NUM_STATE_SLOTS_RATIO", "1.2", "0.9"},
    {"PREFILL_STORE_EXTRA_STATE", "false", nullptr},
    {"PREFILL_STORE_EXTRA_SIZE", "128", "-1"},
    {"XGRAMMAR_DEBUG", "false", nullptr},
    {"XGRAMMAR_TIMEOUT", "20", "0"},
    {"XGRAMMAR_DISABLE_CACHE", "false", nullptr},
    {"XGRAMMAR_CACHE_LIMIT_BYTES", "1073741824", "much"},
    {"SO_BUILDER_CPUS", "4", "0"},
    {"PREFILL_ATTEMPT_INTERVAL", "", "0"},
    {"PREFILL_ANY_ATTEMPT_INTERVAL", "100", "0"},
    {"ZERO_OVERHEAD_SCHEDULING", "", nullptr},
    {"LOGGING_INTERVAL_STEP", "100", "often"},
    {"NCCL_MEMORY_SAMPLE_INTERVAL_STEPS", "1000", "0"},
    {"RINGBUFFER_WARNING_INTERVAL", "60", "0"},
    {"GC_INTERVAL_STEP", "1000", "never"},
    {"YOCO_PREFILL_TRUNCATION_MODE", "auto", "half"},
    {"YOCO_PREFILL_KEEP_TOKENS", "0", "-1"},
    {"BATCH_INVARIANT", "false", nullptr},
    {"DISABLE_SYNC_GUARD", "false", nullptr},
    {"PROFILE_TORCH_CUDA_MEMORY", "", nullptr},
    {"ENABLE_MEMORY_TRACING", "false", nullptr},
    {"PROFILE_HTTP_ENABLE", "false", nullptr},
    {"PROFILE_HTTP_PORT_BASE", "6070", "70000"},
    {"TORCH_PROFILER_DIR", "", nullptr},
    {"USE_MULTIMODAL_POOL", "", nullptr},
    {"MULTIMODAL_POOL_SIZE_GB", "8", "0"},
    {"MULTI_MODAL_BUFFER_SIZE", "512", "0"},
    {"MULTI_MODAL_WORKER_TIMEOUT", "1800", "0"},
    {"HF_MODEL_DIR", "demo", nullptr},
    // Ours.
    {"MAX_DECODE_GAP_MS", "200", "-1"},
    {"DECODE_STEPS_PER_PREFILL", "1", "-1"},
    {"SPEC_VERIFY", "reject", "maybe"},
    {"CACHE_MODE", "auto", "on"},
    {"DETERMINISTIC", "false", nullptr},
    {"KV_ROOT", "", nullptr},
    {"KV_CAPACITY_BYTES", "", "-1"},
    {"KV_STATE_EVERY_BLOCKS", "32", "0"},
    {"KV_PERSIST_SWA", "false", nullptr},
    {"KV_REPLAY_TOKENS", "0", "127"},
};

const OptionSpec* RowOf(const std::string& variable) {
  for (const OptionSpec& spec : OptionTable()) {
    if (spec.env_name() == variable) return &spec;
    for (const std::string_view alias : spec.env_aliases) {
      if (alias == variable) return &spec;
    }
  }
  return nullptr;
}

std::string NameOf(const Variable& variable) { return "DEEPINFER_" + std::string(variable.name); }

TEST(EngineVariables, EachIsKnownWithItsDefault) {
  for (const Variable& variable : kVariables) {
    const OptionSpec* spec = RowOf(NameOf(variable));
    ASSERT_NE(spec, nullptr) << variable.name;
    EXPECT_EQ(OptionValueText(*spec, Config{}), variable.default_value) << variable.name;
  }
}

TEST(EngineVariables, ABadValueIsRefusedByName) {
  for (const Variable& variable : kVariables) {
    if (variable.bad_value == nullptr) continue;
    const std::string name = NameOf(variable);
    const auto resolved = ResolveConfig({}, Environment(Variables{{name, variable.bad_value}}));
    ASSERT_FALSE(resolved.ok()) << name;
    EXPECT_EQ(resolved.status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_TRUE(resolved.status().message().starts_with(name + " ")) << name << ": " << resolved.status().message();
  }
}

TEST(EngineVariables, SwitchesAreOffForFourSpellingsOnly) {
  int num_switches = 0;
  for (const Variable& variable : kVariables) {
    const std::string name = NameOf(variable);
    const OptionSpec* spec = RowOf(name);
    ASSERT_NE(spec, nullptr) << name;
    if (!spec->is_bool()) continue;
    ++num_switches;
    for (const char* off : {"", "0", "false", "False"}) {
      const auto resolved = ResolveConfig({}, Environment(Variables{{name, off}}));
      ASSERT_TRUE(resolved.ok()) << name;
      EXPECT_EQ(OptionValueText(*spec, resolved->config), "false") << name << "=" << off;
    }
    for (const char* on : {"1", "true", "no", "FALSE", "2"}) {
      const auto resolved = ResolveConfig({}, Environment(Variables{{name, on}}));
      ASSERT_TRUE(resolved.ok()) << name;
      EXPECT_EQ(OptionValueText(*spec, resolved->config), "true") << name << "=" << on;
    }
  }
  EXPECT_EQ(num_switches, 19);
}

TEST(EngineVariables, OneWithoutEffectSaysSo) {
  for (const Variable& variable : kVariables) {
    const std::string name = NameOf(variable);
    const OptionSpec* spec = RowOf(name);
    ASSERT_NE(spec, nullptr) << name;
    if (spec->kind == OptionKind::kDirectory || spec->kind == OptionKind::kText || variable.default_value[0] == '\0') continue;
    const auto resolved = ResolveConfig({}, Environment(Variables{{name, variable.default_value}}));
    ASSERT_TRUE(resolved.ok()) << name << ": " << resolved.status().message();
    bool is_warned = false;
    for (const std::string& warning : resolved->warnings) is_warned = is_warned || warning == name + " has no effect in this version";
    EXPECT_EQ(is_warned, !spec->has_effect) << name;
  }
}

TEST(EngineVariables, RulesBetweenThem) {
  const auto error = [](Variables variables) {
    const auto resolved = ResolveConfig({}, Environment(std::move(variables)));
    return resolved.ok() ? std::string() : resolved.status().message();
  };
  EXPECT_EQ(error({{"DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL", "50"}}),
            "--expert-count-window-size is 100 but must be in 1..50, the interval of rearrangements");
  EXPECT_EQ(error({{"DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL", "50"}, {"DEEPINFER_EXPERT_COUNT_WINDOW_SIZE", "50"}}), "");
  EXPECT_EQ(error({{"DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "1,0.5"}, {"DEEPINFER_USE_NEXTN_DECODE", "3"}}),
            "DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE has 2 numbers but there are 3 drafts; give one number or one per draft");
  EXPECT_EQ(error({{"DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "1,0.5"}, {"DEEPINFER_USE_NEXTN_DECODE", "2"}}), "");
}

TEST(EngineVariables, AliasesSetTheSameField) {
  const auto resolved = ResolveConfig({}, Environment(Variables{{"DEEPINFER_ACCELERATOR", "nvidia"},
                                                                {"DEEPINFER_CPP_LOG_LEVEL", "warn"},
                                                                {"DEEPINFER_HF_MODEL_DIR", "/models/x"},
                                                                {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "mask"},
                                                                {"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", "150"}}));
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  const Config& config = resolved->config;
  EXPECT_EQ(config.model.device, "cuda");
  EXPECT_EQ(config.log.level, "warn");
  EXPECT_EQ(config.model.model, "/models/x");
  EXPECT_EQ(config.model.decoder_replay, "mask");
  EXPECT_EQ(config.model.decoder_replay_keep, 150);
}

TEST(IdRanges, IdsAndRanges) {
  EXPECT_EQ(ParseIdRanges("3, 7-9 ,0", "X", 10).value(), (std::vector<int32_t>{3, 7, 8, 9, 0}));
  EXPECT_TRUE(ParseIdRanges("", "X", 10).value().empty());
  for (const char* bad : {"x", "-1", "1-", "3-1", "1,,2", "1-2-3", "99999999999"}) {
    const auto ids = ParseIdRanges(bad, "X", 10);
    ASSERT_FALSE(ids.ok()) << bad;
    EXPECT_TRUE(ids.status().message().starts_with("X holds ")) << ids.status().message();
  }
  EXPECT_EQ(ParseIdRanges("8-10", "X", 10).status().message(), "X holds token id 10 but ids are 0..9");
}

}  // namespace
}  // namespace deepinfer
