// SPDX-License-Identifier: Apache-2.0
//
// debug logits: the logits of every position of a token sequence, and on request every inner stage.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/model_session.h"
#include "core/json.h"
#include "model/safetensors.h"
#include "model/safetensors_writer.h"
#include "model/sequence.h"

namespace deepinfer::cli {

namespace {

constexpr size_t kTop = 8;

// Stages of several chunks, joined along the first axis. Rows of index scores and selections grow with the context:
// earlier chunks are padded with the stage's own "nothing" value.
template <typename T>
class StageCollector {
 public:
  void Add(const std::string& name, std::span<const int64_t> shape, const T* data) {
    int64_t count = 1;
    for (const int64_t d : shape) count *= d;
    parts_[name].push_back({{shape.begin(), shape.end()}, {data, data + count}});
  }

  struct Stage {
    std::vector<int64_t> shape;
    std::vector<T> values;
  };
  static Stage Join(const std::vector<Stage>& parts, T padding) {
    Stage joined{parts[0].shape, {}};
    joined.shape[0] = 0;
    for (const Stage& part : parts) {
      joined.shape[0] += part.shape[0];
      if (part.shape.size() == 2) joined.shape[1] = std::max(joined.shape[1], part.shape[1]);
    }
    for (const Stage& part : parts) {
      if (part.shape.size() != 2) {
        joined.values.insert(joined.values.end(), part.values.begin(), part.values.end());
        continue;
      }
      for (int64_t r = 0; r < part.shape[0]; ++r) {
        const auto row = part.values.begin() + r * part.shape[1];
        joined.values.insert(joined.values.end(), row, row + part.shape[1]);
        joined.values.insert(joined.values.end(), static_cast<size_t>(joined.shape[1] - part.shape[1]), padding);
      }
    }
    return joined;
  }
  const std::map<std::string, std::vector<Stage>>& parts() const { return parts_; }

 private:
  std::map<std::string, std::vector<Stage>> parts_;
};

struct ImageInput {
  std::vector<uint8_t> is_image;
  std::vector<float> embeds;
};

Result<ImageInput> ReadImageEmbeds(const std::string& path, size_t num_ids, int64_t hidden) {
  DI_ASSIGN_OR_RETURN(const model::SafetensorsFile file, model::SafetensorsFile::Open(path));
  const model::TensorView* image = file.Find("image");
  const model::TensorView* embeds = file.Find("embeds");
  const int64_t n = static_cast<int64_t>(num_ids);
  if (image == nullptr || image->dtype != DType::kU8 || image->shape != std::vector<int64_t>{n})
    return BadModel(fmt::format("{}: expected a tensor image [{}] U8", path, n));
  if (embeds == nullptr || embeds->dtype != DType::kF32 || embeds->shape != std::vector<int64_t>{n, hidden})
    return BadModel(fmt::format("{}: expected a tensor embeds [{}, {}] F32", path, n, hidden));
  ImageInput input;
  input.is_image.assign(image->data, image->data + n);
  input.embeds.resize(static_cast<size_t>(n * hidden));
  std::memcpy(input.embeds.data(), embeds->data, input.embeds.size() * sizeof(float));
  return input;
}

Status WriteStages(const std::string& path, std::span<const float> logits, int64_t vocab, const std::vector<int32_t>& ids,
                   const StageCollector<float>& floats, const StageCollector<int32_t>& ints) {
  model::SafetensorsWriter writer;
  const int64_t rows = static_cast<int64_t>(ids.size());
  writer.Add("logits", DType::kF32, {rows, vocab}, logits.data(), static_cast<int64_t>(logits.size_bytes()));
  std::vector<int64_t> wide(ids.begin(), ids.end());
  if (!floats.parts().empty() || !ints.parts().empty())
    writer.Add("tokens", DType::kI64, {rows}, wide.data(), rows * 8);
  for (const auto& [name, parts] : floats.parts()) {
    const auto stage = StageCollector<float>::Join(parts, -std::numeric_limits<float>::infinity());
    writer.Add(name, DType::kF32, stage.shape, stage.values.data(), static_cast<int64_t>(stage.values.size() * sizeof(float)));
  }
  for (const auto& [name, parts] : ints.parts()) {
    const auto stage = StageCollector<int32_t>::Join(parts, name.ends_with(".candidates") ? 0 : -1);
    // Types as in golden/model: table rows are I64, masks U8.
    if (name == "engram_rows") {
      wide.assign(stage.values.begin(), stage.values.end());
      writer.Add(name, DType::kI64, stage.shape, wide.data(), static_cast<int64_t>(wide.size() * 8));
    } else if (name.ends_with(".candidates")) {
      const std::vector<uint8_t> marks(stage.values.begin(), stage.values.end());
      writer.Add(name, DType::kU8, stage.shape, marks.data(), static_cast<int64_t>(marks.size()));
    } else {
      writer.Add(name, DType::kI32, stage.shape, stage.values.data(), static_cast<int64_t>(stage.values.size() * 4));
    }
  }
  return writer.WriteFile(path);
}

Status Run(Invocation& invocation) {
  const DebugConfig& debug = invocation.config.debug;
  const std::string& out_path = invocation.config.output.out;
  if (debug.trace && out_path.empty()) return InvalidArgument("--trace needs a file for the stages; add --out FILE.safetensors");
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, debug.trace));
  model::Model& model = engine->model();
  const model::ModelConfig& config = engine->config();
  DI_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsOption(invocation, config));
  ImageInput image;
  if (!debug.image_embeds.empty()) {
    DI_ASSIGN_OR_RETURN(image, ReadImageEmbeds(debug.image_embeds, ids.size(), config.hidden_size));
  }

  StageCollector<float> floats;
  StageCollector<int32_t> ints;
  model::TraceSink sink;
  sink.on_float = [&](const std::string& name, std::span<const int64_t> shape, const float* data) { floats.Add(name, shape, data); };
  sink.on_int = [&](const std::string& name, std::span<const int64_t> shape, const int32_t* data) { ints.Add(name, shape, data); };

  DI_ASSIGN_OR_RETURN(const auto sequence, model.NewSequence());
  const size_t vocab = static_cast<size_t>(config.vocab_size);
  // Bounded pieces when the logits are not kept: only the best ones of each row are.
  const size_t chunk_size = debug.decode ? 1 : debug.chunk > 0 ? static_cast<size_t>(debug.chunk) : ids.size();
  std::vector<float> all_logits;
  Json argmax = Json::array(), top = Json::array();
  for (size_t done = 0; done < ids.size();) {
    const size_t n = std::min(chunk_size, ids.size() - done);
    model::SequenceChunk chunk;
    chunk.sequence = sequence.get();
    chunk.ids = std::span(ids).subspan(done, n);
    chunk.all_logits = true;
    if (!image.is_image.empty()) {
      chunk.is_image = std::span(image.is_image).subspan(done, n);
      chunk.image_embeds = image.embeds.data() + done * static_cast<size_t>(config.hidden_size);
    }
    DI_ASSIGN_OR_RETURN(const std::span<const float> logits, model.Forward({&chunk, 1}, debug.trace ? &sink : nullptr));
    if (!out_path.empty()) all_logits.insert(all_logits.end(), logits.begin(), logits.end());
    std::vector<int32_t> order(vocab);
    for (size_t t = 0; t < n; ++t) {
      const auto row = logits.subspan(t * vocab, vocab);
      if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })) {
        return Internal(fmt::format("the logits of position {} are not finite; check the weights with deepinfer inspect --verify",
                                    done + t));
      }
      std::iota(order.begin(), order.end(), 0);
      const size_t k = std::min(kTop, vocab);
      std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(), [&](int32_t x, int32_t y) {
        const float a = row[static_cast<size_t>(x)], b = row[static_cast<size_t>(y)];
        return a != b ? a > b : x < y;
      });
      Json best = Json::array();
      for (size_t i = 0; i < k; ++i) best.push_back(Json::array({order[i], row[static_cast<size_t>(order[i])]}));
      argmax.push_back(order[0]);
      top.push_back(std::move(best));
    }
    done += n;
  }
  if (!out_path.empty()) DI_RETURN_IF_ERROR(WriteStages(out_path, all_logits, config.vocab_size, ids, floats, ints));
  invocation.out.Line(DumpJson(Json{{"argmax", std::move(argmax)}, {"top", std::move(top)}}));
  return invocation.out.Check();
}

}  // namespace

Command DebugLogitsCommand() {
  return {.name = "debug logits",
          .summary = "logits of every position of --ids: argmax and the 8 best as JSON",
          .usage = "",
          .run = Run,
          .arg_choices = {},
          .details = "--out FILE.safetensors stores all logits [L, V], with --trace also every inner stage under its name of the\n"
                     "reference. --chunk N and --decode change how the tokens are fed, not the result."};
}

}  // namespace deepinfer::cli
