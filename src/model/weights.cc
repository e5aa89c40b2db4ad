// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>

#include <fmt/format.h>

#include "core/finite.h"
#include "model/read_ahead.h"

namespace deepinfer::model {

namespace {

using device::Buffer;
using device::HostMatrix;
using device::WeightFormat;

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, device::Device& device, const std::function<void(int64_t, int64_t)>& progress,
         int64_t total_bytes)
      : checkpoint_(checkpoint), device_(device), progress_(progress), total_bytes_(total_bytes), ahead_(LoadOrder(checkpoint, device.streams_experts())) {}

  // A matrix in stored form. Rows [first_row, first_row + num_rows) of it; num_rows < 0: all.
  // is_deferred: nothing is read now; the device checks the values when it reads them.
  Result<HostMatrix> View(const std::string& name, int64_t first_row = 0, int64_t num_rows = -1, bool is_deferred = false) {
    DI_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint_.Get(name));
    if (tensor.shape.size() != 2) return BadModel(fmt::format("tensor {} must have two dimensions", name));
    HostMatrix m;
    m.rows = num_rows < 0 ? tensor.dim(0) : num_rows;
    m.cols = tensor.dim(1);
    int64_t row_bytes = m.cols * DTypeBytes(tensor.dtype);
    const bool is_table = name.ends_with(".engram.embed.weight");
    switch (tensor.dtype) {
      case DType::kF32: m.format = WeightFormat::kF32; break;
      case DType::kBf16: m.format = WeightFormat::kBf16; break;
      case DType::kF8E4M3: m.format = is_table ? WeightFormat::kFp8Row32 : WeightFormat::kFp8Block32; break;
      case DType::kI8:
        m.format = WeightFormat::kFp4Row32;
        m.cols *= 2;
        break;
      default: return BadModel(fmt::format("tensor {} has dtype {}, which no weight uses", name, DTypeName(tensor.dtype)));
    }
    m.host_data = tensor.data + first_row * row_bytes;
    // A NaN does not always reach the logits: it may change which experts are chosen, or drown in a comparison. The n-gram
    // tables, which are huge and stay unread here, are left to `inspect --verify`.
    if (!is_table && !is_deferred)
      DI_RETURN_IF_ERROR(CheckFinite(tensor.dtype, tensor.data + first_row * row_bytes, first_row * tensor.dim(1), m.rows * row_bytes, name));
    int64_t scale_bytes = 0;
    if (tensor.dtype == DType::kF8E4M3 || tensor.dtype == DType::kI8) {
      const std::string scale_name = name.substr(0, name.size() - std::string_view(".weight").size()) + ".scale";
      DI_ASSIGN_OR_RETURN(const TensorView scale, checkpoint_.Get(scale_name));
      const bool per_tile = m.format == WeightFormat::kFp8Block32;
      if (per_tile && first_row % 32 != 0)
        return BadModel(fmt::format("tensor {} is cut at row {}, which is no multiple of its scale block of 32", name, first_row));
      scale_bytes = (per_tile ? (m.rows + 31) / 32 : m.rows) * scale.dim(1);
      m.host_scale = scale.data + (per_tile ? first_row / 32 : first_row) * scale.dim(1);
      // The scales of the huge tables stay unread.
      if (!is_table && !is_deferred && std::memchr(m.host_scale, 0xff, static_cast<size_t>(scale_bytes)))
        return BadModel(fmt::format("tensor {} holds a NaN scale; the file is damaged, download it again", scale_name));
    }
    Done(m.rows * row_bytes, is_table || is_deferred ? 0 : m.rows * row_bytes + scale_bytes);
    return m;
  }

  Result<MatrixPtr> Matrix(std::initializer_list<std::string> names) {
    std::vector<HostMatrix> parts;
    for (const auto& name : names) {
      DI_ASSIGN_OR_RETURN(parts.emplace_back(), View(name));
    }
    return device_.CreateMatrix(parts);
  }

  // Row blocks of one tensor, each its own part.
  Result<MatrixPtr> Groups(const std::string& name, int num_groups, int64_t rows_per_group) {
    std::vector<HostMatrix> parts;
    for (int g = 0; g < num_groups; ++g) {
      DI_ASSIGN_OR_RETURN(parts.emplace_back(), View(name, g * rows_per_group, rows_per_group));
    }
    return device_.CreateMatrix(parts);
  }

  Result<std::vector<float>> HostFloats(const std::string& name) {
    DI_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint_.Get(name));
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    if (tensor.dtype == DType::kF32) {
      std::memcpy(values.data(), tensor.data, values.size() * sizeof(float));
    } else if (tensor.dtype == DType::kBf16) {
      for (size_t i = 0; i < values.size(); ++i) {
        uint16_t bits;
        std::memcpy(&bits, tensor.data + 2 * i, 2);
        values[i] = Bf16ToFloat(bits);
      }
    } else {
      return BadModel(fmt::format("tensor {} has dtype {}, expected F32 or BF16", name, DTypeName(tensor.dtype)));
    }
    DI_RETURN_IF_ERROR(CheckFinite(tensor.dtype, tensor.data, 0, tensor.num_bytes, name));
    Done(tensor.num_bytes, tensor.num_bytes);
    return values;
  }

  Result<Buffer> Upload(const std::vector<float>& values) {
    const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(float));
    DI_ASSIGN_OR_RETURN(Buffer buffer, device_.Allocate(bytes));
    device_.Upload(buffer.data(), values.data(), bytes);
    return buffer;
  }

  Result<Buffer> Floats(const std::string& name) {
    DI_ASSIGN_OR_RETURN(const std::vector<float> values, HostFloats(name));
    return Upload(values);
  }

  Status Site(const std::string& prefix, SiteWeights& site) {
    DI_ASSIGN_OR_RETURN(site.fn, Matrix({prefix + "_fn"}));
    DI_ASSIGN_OR_RETURN(site.base, Floats(prefix + "_base"));
    DI_ASSIGN_OR_RETURN(site.scale, Floats(prefix + "_scale"));
    return Status::Ok();
  }

  // The parts that every layer and every draft stage has.
  Status Common(const ModelConfig& config, const std::string& prefix, int num_experts, LayerWeights& w) {
    const std::string attn = prefix + ".attn.", ffn = prefix + ".ffn.";
    DI_ASSIGN_OR_RETURN(w.attn_norm, Floats(prefix + ".attn_norm.weight"));
    DI_ASSIGN_OR_RETURN(w.ffn_norm, Floats(prefix + ".ffn_norm.weight"));
    DI_ASSIGN_OR_RETURN(w.q_norm, Floats(attn + "q_norm.weight"));
    DI_ASSIGN_OR_RETURN(w.kv_norm, Floats(attn + "kv_norm.weight"));
    DI_ASSIGN_OR_RETURN(w.sink, Floats(attn + "attn_sink"));
    DI_ASSIGN_OR_RETURN(w.qa_kv, Matrix({attn + "wq_a.weight", attn + "wkv.weight"}));
    DI_ASSIGN_OR_RETURN(w.q_b, Matrix({attn + "wq_b.weight"}));
    DI_ASSIGN_OR_RETURN(w.o_a, Groups(attn + "wo_a.weight", config.o_groups, config.o_lora_rank));
    DI_ASSIGN_OR_RETURN(w.o_b, Matrix({attn + "wo_b.weight"}));
    DI_RETURN_IF_ERROR(Site(prefix + ".hc_attn", w.hc_attn));
    DI_RETURN_IF_ERROR(Site(prefix + ".hc_ffn", w.hc_ffn));
    DI_ASSIGN_OR_RETURN(w.gate, Matrix({ffn + "gate.weight"}));
    DI_ASSIGN_OR_RETURN(w.gate_bias, Floats(ffn + "gate.bias"));
    if (checkpoint_.Find(ffn + "gate.bias_vl") != nullptr) {
      DI_ASSIGN_OR_RETURN(w.gate_bias_image, Floats(ffn + "gate.bias_vl"));
    }
    const auto expert = [&](const std::string& name, bool is_deferred = false) -> Result<device::HostExpert> {
      device::HostExpert e;
      DI_ASSIGN_OR_RETURN(e.w1, View(name + ".w1.weight", 0, -1, is_deferred));
      DI_ASSIGN_OR_RETURN(e.w3, View(name + ".w3.weight", 0, -1, is_deferred));
      DI_ASSIGN_OR_RETURN(e.w2, View(name + ".w2.weight", 0, -1, is_deferred));
      return e;
    };
    std::vector<device::HostExpert> experts;
    for (int e = 0; e < num_experts; ++e) {
      DI_ASSIGN_OR_RETURN(experts.emplace_back(), expert(fmt::format("{}experts.{}", ffn, e), device_.streams_experts()));
    }
    DI_ASSIGN_OR_RETURN(const device::HostExpert shared, expert(ffn + "shared_experts"));
    DI_ASSIGN_OR_RETURN(w.experts, device_.CreateExperts(experts, shared));
    return Status::Ok();
  }

  Status Layer(const ModelConfig& config, int layer, LayerWeights& w) {
    const std::string prefix = fmt::format("layers.{}", layer);
    DI_RETURN_IF_ERROR(Common(config, prefix, config.n_routed_experts, w));
    const std::string attn = prefix + ".attn.";
    const int ratio = config.compress_ratios[static_cast<size_t>(layer)];
    if (ratio > 0 && config.is_kv_source(layer)) {
      if (ratio == 2) {
        DI_ASSIGN_OR_RETURN(w.compressor, Matrix({attn + "compressor.wgate.weight", attn + "compressor.wkv.weight"}));
      } else {
        DI_ASSIGN_OR_RETURN(w.compressor, Matrix({attn + "compressor.wkv.weight"}));
      }
      DI_ASSIGN_OR_RETURN(w.compressor_norm, Floats(attn + "compressor.norm.weight"));
      DI_ASSIGN_OR_RETURN(w.index_key, Matrix({attn + "indexer.wk.weight"}));
      DI_ASSIGN_OR_RETURN(w.index_key_norm, Floats(attn + "indexer.k_norm.weight"));
    }
    if (ratio > 0 && config.is_index_source(layer)) {
      DI_ASSIGN_OR_RETURN(w.index_query, Matrix({attn + "indexer.wq_b.weight"}));
      DI_ASSIGN_OR_RETURN(w.index_weight, Matrix({attn + "indexer.weights_proj.weight"}));
    }
    if (config.engram_index(layer) >= 0) {
      const std::string engram = prefix + ".engram.";
      DI_ASSIGN_OR_RETURN(const HostMatrix table, View(engram + "embed.weight"));
      DI_ASSIGN_OR_RETURN(w.engram_table, device_.CreateTable(table));
      DI_ASSIGN_OR_RETURN(w.engram_kv, Matrix({engram + "wkv.weight"}));
      DI_ASSIGN_OR_RETURN(std::vector<float> qk, HostFloats(engram + "q_weight"));
      DI_ASSIGN_OR_RETURN(const std::vector<float> k, HostFloats(engram + "k_weight"));
      if (k.size() != qk.size()) return BadModel(fmt::format("{}q_weight and k_weight differ in size", engram));
      for (size_t i = 0; i < qk.size(); ++i) qk[i] *= k[i];
      DI_ASSIGN_OR_RETURN(w.engram_qk, Upload(qk));
    }
    // Memory is short then: what was packed is not needed twice.
    if (device_.streams_experts()) checkpoint_.DropPages();
    return Status::Ok();
  }

  Status Draft(const ModelConfig& config, ModelWeights& w) {
    const int stages = config.num_draft_stages;
    std::vector<HostMatrix> keys;
    for (int i = 0; i < stages; ++i) {
      const std::string prefix = fmt::format("mtp.{}", i);
      DI_RETURN_IF_ERROR(Common(config, prefix, config.dspark_n_routed_experts, w.stages.emplace_back()));
      DI_ASSIGN_OR_RETURN(keys.emplace_back(), View(prefix + ".attn.wkv.weight"));
    }
    DI_ASSIGN_OR_RETURN(w.context_keys, device_.CreateMatrix(keys));
    const std::string last = fmt::format("mtp.{}.", stages - 1);
    DI_ASSIGN_OR_RETURN(w.main_proj, Matrix({"mtp.0.main_proj.weight"}));
    DI_ASSIGN_OR_RETURN(w.main_norm, Floats("mtp.0.main_norm.weight"));
    DI_ASSIGN_OR_RETURN(w.draft_norm, Floats(last + "norm.weight"));
    DI_ASSIGN_OR_RETURN(const HostMatrix embed, View(last + "markov_head.embed.weight"));
    DI_ASSIGN_OR_RETURN(w.markov_embed, device_.CreateTable(embed));
    DI_ASSIGN_OR_RETURN(w.markov_head, Matrix({last + "markov_head.head.weight"}));
    DI_ASSIGN_OR_RETURN(w.confidence, Matrix({last + "confidence_head.proj.weight"}));
    return Status::Ok();
  }

  Result<ModelWeights> Load(const ModelConfig& config, bool with_draft) {
    ModelWeights w;
    DI_ASSIGN_OR_RETURN(const HostMatrix embed, View("embed.weight"));
    DI_ASSIGN_OR_RETURN(w.embed, device_.CreateTable(embed));
    DI_ASSIGN_OR_RETURN(w.head, Matrix({"head.weight"}));
    DI_ASSIGN_OR_RETURN(w.norm, Floats("norm.weight"));
    w.layers.resize(static_cast<size_t>(config.num_hidden_layers));
    for (int layer = 0; layer < config.num_hidden_layers; ++layer)
      DI_RETURN_IF_ERROR(Layer(config, layer, w.layers[static_cast<size_t>(layer)]));
    if (with_draft && config.num_draft_stages > 0) DI_RETURN_IF_ERROR(Draft(config, w));
    if (progress_) progress_(total_bytes_, total_bytes_);
    return w;
  }

 private:
  // num_bytes of the tensor's values at `data`, the first of them element `first`.
  Status CheckFinite(DType dtype, const uint8_t* data, int64_t first, int64_t num_bytes, const std::string& name) {
    constexpr int64_t kPart = int64_t{1} << 20;  // a multiple of every element
    std::atomic<int64_t> found{INT64_MAX};
    device_.pool().ParallelFor((num_bytes + kPart - 1) / kPart, [&](int64_t part, int) {
      const int64_t begin = part * kPart;
      const int64_t at = FirstNonFinite(dtype, data + begin, std::min(kPart, num_bytes - begin));
      if (at < 0) return;
      const int64_t element = begin / DTypeBytes(dtype) + at;
      int64_t least = found.load();
      while (element < least && !found.compare_exchange_weak(least, element)) {
      }
    });
    const int64_t bad = found.load();
    if (bad == INT64_MAX) return Status::Ok();
    return BadModel(fmt::format("tensor {} holds a value that is not finite at element {}; the file is damaged, download it again",
                                name, first + bad));
  }

  // The files in the order of Load, tables left out: only single rows of those are ever read. Streamed experts are read later.
  static std::vector<ReadAhead::Extent> LoadOrder(const Checkpoint& checkpoint, bool streams_experts) {
    std::vector<std::tuple<int, const uint8_t*, int64_t>> parts;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      if (tensor.shard_idx < 0) return {};  // in memory
      if (name.ends_with(".engram.embed.weight") || name.ends_with(".engram.embed.scale") || name.starts_with("vision.")) continue;
      if (streams_experts && name.find(".ffn.experts.") != std::string::npos) continue;
      const auto number = [&name](size_t begin) { return std::atoi(name.c_str() + begin); };
      const int turn = name.starts_with("layers.") ? 1 + number(7) : name.starts_with("mtp.") ? 1'000'000 + number(4) : 0;
      parts.emplace_back(turn, tensor.data, tensor.num_bytes);
    }
    std::sort(parts.begin(), parts.end());
    std::vector<ReadAhead::Extent> extents;
    for (const auto& [turn, data, bytes] : parts) {
      if (!extents.empty() && extents.back().begin + extents.back().bytes == data) {
        extents.back().bytes += bytes;
      } else {
        extents.push_back({data, bytes});
      }
    }
    return extents;
  }

  // bytes: for the progress; used_bytes: of what was read.
  void Done(int64_t bytes, int64_t used_bytes) {
    done_bytes_ += bytes;
    used_bytes_ += used_bytes;
    ahead_.Advance(used_bytes_);
    if (progress_) progress_(std::min(done_bytes_, total_bytes_), total_bytes_);
  }

  const Checkpoint& checkpoint_;
  device::Device& device_;
  const std::function<void(int64_t, int64_t)>& progress_;
  int64_t total_bytes_;
  int64_t done_bytes_ = 0;
  int64_t used_bytes_ = 0;
  ReadAhead ahead_;
};

}  // namespace

Result<ModelWeights> ModelWeights::Load(const Checkpoint& checkpoint, const ModelConfig& config, device::Device& device,
                                        bool with_draft, const std::function<void(int64_t, int64_t)>& progress) {
  return Loader(checkpoint, device, progress, checkpoint.payload_bytes()).Load(config, with_draft);
}

}  // namespace deepinfer::model
