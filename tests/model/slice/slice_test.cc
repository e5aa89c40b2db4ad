// SPDX-License-Identifier: Apache-2.0
//
// perf-small, the slice of the released model at its real widths (seven layers, one of each kind), made in memory: 300
// prompt tokens and 32 decode steps, every stage of every instruction set against the scalar kernels fed with the same
// input. Needs about 14 GB of memory and, because of the scalar pass, tens of minutes: ./build.sh soak slice. With
// DEEPINFER_TEST_DEVICE=cuda: the GPU against the CPU (minutes; tools/gpu_tests.sh).

#include "core/clock.h"
#include "core/memory_info.h"
#include "model/released_config.h"
#include "model/stage_compare.h"
#include "test_device.h"

namespace deepinfer::model {
namespace {

constexpr int64_t kNeededBytes = int64_t{15} << 30;

ModelConfig SliceConfig() {
  SliceOptions shape;
  shape.max_position_embeddings = 4096;
  return ModelConfig::FromJson(SliceConfigJson(shape), "slice configuration").value();
}

LoadOptions OptionsOf(const ModelConfig& config, Numerics numerics) {
  LoadOptions options;
  options.numerics = numerics;
  options.with_draft = false;
  // Any map of the right size does: several tokens share an id, as in the released one.
  for (int id = 0; id < config.vocab_size; ++id)
    options.compressed_vocab.push_back(static_cast<int32_t>(id % config.engram_compressed_vocab_size));
  return options;
}

StageScript ScriptOf(const ModelConfig& config) {
  StageScript script;
  uint64_t state = 7;
  for (int i = 0; i < 300 + 32; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    // A stretch repeats, so that n-grams come back.
    const int32_t id = i % 100 >= 75 && i >= 100 ? script.prompt[static_cast<size_t>(i % 100)]
                                                 : static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(config.vocab_size));
    (i < 300 ? script.prompt : script.decoded).push_back(id);
  }
  return script;
}

class Slice : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(Arithmetics, Slice, testing::Values(Numerics::kRelease, Numerics::kPlain),
                         [](const auto& param_info) { return std::string(FileName(param_info.param)); });

TEST_P(Slice, EveryInstructionSetAgainstScalar) {
  if (!TestsRunOnCpu()) GTEST_SKIP() << "of the CPU";
  const int64_t available = ReadMemoryInfo().available_bytes;
  ASSERT_GE(available, kNeededBytes) << "the slice needs 15 GiB of memory";
  const Clock& clock = Clock::Steady();
  const ModelConfig config = SliceConfig();
  ThreadPool pool;
  auto made = Checkpoint::Dummy(config, 1, &pool);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const std::shared_ptr<const Checkpoint> checkpoint = std::move(made).value();
  const LoadOptions options = OptionsOf(config, GetParam());
  std::printf("slice of %d layers, %d experts, hidden %d, vocabulary %d, %.2f GB, %s, %d threads\n", config.num_hidden_layers,
              config.n_routed_experts, config.hidden_size, config.vocab_size,
              static_cast<double>(checkpoint->payload_bytes()) * 1e-9, FileName(GetParam()), pool.num_threads());
  std::fflush(stdout);

  const StageScript script = ScriptOf(config);
  StageCompare compare(script);
  int num_compared = 0;
  for (const CpuIsa isa : SupportedCpuIsas()) {
    SCOPED_TRACE(CpuIsaName(isa));
    const ScopedCpuIsa scoped(isa);
    auto device = TestDevice();
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    double start = clock.NowSeconds();
    auto model = Model::Load(checkpoint, config, *device, options);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    const double load_s = clock.NowSeconds() - start;
    start = clock.NowSeconds();
    if (isa == CpuIsa::kScalar) {
      compare.Record(**model);
    } else {
      compare.Compare(**model);
    }
    std::printf("%s: loaded in %.1f s, pass with trace in %.1f s\n", std::string(CpuIsaName(isa)).c_str(), load_s,
                clock.NowSeconds() - start);
    std::fflush(stdout);
    if (isa == CpuIsa::kScalar) continue;
    compare.Print(fmt::format("{} against scalar, {}, {} prompt tokens and {} decode steps", CpuIsaName(isa), FileName(GetParam()),
                              script.prompt.size(), script.decoded.size())
                      .c_str());
    CheckStages(compare, GetParam());
    ++num_compared;
  }
  if (num_compared == 0) GTEST_SKIP() << "this processor has only the scalar path";
}

TEST(SliceOnGpu, EveryStageAgainstCpu) {
  if (TestsRunOnCpu()) GTEST_SKIP() << "needs DEEPINFER_TEST_DEVICE=cuda";
  const ModelConfig config = SliceConfig();
  std::shared_ptr<const Checkpoint> checkpoint;
  {
    ThreadPool pool;
    auto made = Checkpoint::Dummy(config, 1, &pool);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    checkpoint = std::move(made).value();
  }
  const LoadOptions options = OptionsOf(config, Numerics::kRelease);
  StageCompare compare(ScriptOf(config));
  {
    auto model = Model::Load(checkpoint, config, backends::CreateDevice("cpu").value(), options);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    compare.Record(**model);
  }
  for (const bool invariant : {true, false}) {
    backends::DeviceOptions device_options;
    device_options.batch_invariant = invariant;
    if (const char* plugin = std::getenv("DEEPINFER_TEST_CUDA_PLUGIN"); plugin != nullptr) device_options.cuda_plugin = plugin;
    auto device = backends::CreateDevice(TestDeviceName(), device_options);
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    auto model = Model::Load(checkpoint, config, *device, options);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    compare.Compare(**model);
    compare.Print(invariant ? "GPU, batch invariant, against the CPU" : "GPU against the CPU");
    CheckStages(compare, Numerics::kRelease);
  }
}

}  // namespace
}  // namespace deepinfer::model
