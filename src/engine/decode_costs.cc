// SPDX-License-Identifier: Apache-2.0
#include "engine/decode_costs.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "engine/prefix_key.h"

namespace deepinfer::engine {
namespace {

constexpr size_t kMaxPoints = 8;
// Larger steps follow the last line of the curve.
constexpr int64_t kMostMeasured = 384;
constexpr int kTimedRuns = 5;
constexpr int64_t kMaxCurveBytes = 1 << 16;
constexpr int64_t kKeepExpired = 7200;
constexpr size_t kKeyChars = 64;

// The mean without the best and the worst run.
double TrimmedMean(std::vector<double> runs) {
  std::sort(runs.begin(), runs.end());
  const size_t cut = runs.size() >= 3 ? 1 : 0;
  double sum = 0;
  for (size_t i = cut; i < runs.size() - cut; ++i) sum += runs[i];
  return sum / static_cast<double>(runs.size() - 2 * cut);
}

class MostLikely : public model::DraftChooser {
 public:
  explicit MostLikely(int vocab_size) : vocab_size_(vocab_size) {}
  void Choose(int, float* logits, int64_t stride, std::span<int32_t> tokens) override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const float* const row = logits + static_cast<int64_t>(i) * stride;
      tokens[i] = static_cast<int32_t>(std::max_element(row, row + vocab_size_) - row);
    }
  }

 private:
  int vocab_size_;
};

// <64 hex digits>.<hex digits>.<decimal digits>
struct CurveName {
  std::string_view key;
  int64_t written_s = 0;
};
std::optional<CurveName> ParseName(std::string_view name) {
  const auto is_hex = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  };
  const size_t first = name.find('.'), last = name.rfind('.');
  if (first != kKeyChars || last == first || !is_hex(name.substr(0, first)) || !is_hex(name.substr(first + 1, last - first - 1)))
    return std::nullopt;
  CurveName parsed{name.substr(0, first), 0};
  const std::string_view digits = name.substr(last + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), parsed.written_s);
  if (error != std::errc() || end != digits.data() + digits.size() || parsed.written_s < 0) return std::nullopt;
  return parsed;
}

// Calls fn(path, name) for every curve in the folder.
template <typename F>
void ForEachCurve(const std::string& dir, F&& fn) {
  std::error_code error;
  std::filesystem::directory_iterator it(dir, error), end;
  for (; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (const auto parsed = ParseName(name)) fn(it->path().string(), *parsed);
  }
}

CostCurve ParseCurve(const std::string& path) {
  const Result<std::string> text = ReadFile(path, kMaxCurveBytes);
  if (!text.ok()) return {};
  const Result<Json> json = ParseJson(*text);
  if (!json.ok() || !json->is_array()) return {};
  std::vector<std::pair<int64_t, double>> points;
  for (const Json& point : *json) {
    if (!point.is_array() || point.size() != 2 || !point[0].is_number_integer() || !point[1].is_number()) return {};
    points.emplace_back(point[0].get<int64_t>(), point[1].get<double>());
  }
  return CostCurve(std::move(points));
}

}  // namespace

std::vector<int64_t> MeasuredSizes(int64_t most) {
  most = std::min(most, kMostMeasured);
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size < most; size *= 2) sizes.push_back(size);
  sizes.push_back(most);
  // Small sizes are what varies: the gaps are made at the far end.
  while (sizes.size() > kMaxPoints) sizes.erase(sizes.end() - 2);
  return sizes;
}

Result<CostCurves> MeasureCosts(StepModel& model, const MeasureCostsOptions& options) {
  const Clock& clock = *options.clock;
  const double begin_s = clock.NowSeconds();
  const int64_t num_seqs = std::min({options.max_num_seqs, options.num_blocks - 1, options.num_slots - 1});
  if (num_seqs < 1) return InvalidArgument("no block or slot to measure with");
  const int64_t rows_per_seq = 1 + options.num_drafts;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < num_seqs * rows_per_seq; ++i)
    ids.push_back(static_cast<int32_t>((i * 7919 + 13) % model.vocab_size()));
  std::vector<SlotChunk> chunks;
  // `size` rows over as many sequences as a step of that size has at most drafts for.
  const auto prepare = [&](int64_t size, int64_t count) {
    chunks.clear();
    for (int64_t s = 0; s < count; ++s) {
      const int32_t slot = static_cast<int32_t>(s + 1);
      model.Bind(slot, {}, 0, 0);
      model.SetBlocks(slot, 0, {&slot, 1});
      SlotChunk& chunk = chunks.emplace_back();
      chunk.slot = slot;
      const int64_t begin = size * s / count, end = size * (s + 1) / count;
      chunk.ids = std::span<const int32_t>(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      chunk.logits = LogitRows::kAll;
    }
  };
  const auto time = [&](double share, auto&& run, auto&& reset) -> Result<double> {
    std::vector<double> runs;
    DI_RETURN_IF_ERROR(run());
    for (int i = 0; i < kTimedRuns; ++i) {
      reset();
      const double start = clock.NowSeconds();
      DI_RETURN_IF_ERROR(run());
      runs.push_back((clock.NowSeconds() - start) * 1e3);
      if (clock.NowSeconds() - begin_s > share * options.max_seconds) break;
    }
    return std::max(TrimmedMean(std::move(runs)), 1e-6);
  };

  CostCurves curves;
  std::vector<std::pair<int64_t, double>> points;
  const std::vector<int64_t> sizes = MeasuredSizes(num_seqs * rows_per_seq);
  for (size_t i = sizes.size(); i-- > 0;) {
    // A model whose single step takes that long is not measured further: running steps correct the curve.
    if (!points.empty() && clock.NowSeconds() - begin_s > 0.7 * options.max_seconds) break;
    const int64_t size = sizes[i], count = std::max<int64_t>(std::min(num_seqs, size), 1);
    prepare(size, count);
    const double share = 0.7 * static_cast<double>(sizes.size() - i) / static_cast<double>(sizes.size());
    DI_ASSIGN_OR_RETURN(const double ms, time(
                                             share, [&] { return model.Forward(chunks).status(); }, [&] { prepare(size, count); }));
    points.emplace_back(size, ms);
  }
  std::reverse(points.begin(), points.end());
  curves.forward = CostCurve(std::move(points));
  if (options.num_drafts == 0) return curves;

  points = {};
  MostLikely chooser(model.vocab_size());
  std::vector<SlotDraft> drafts;
  std::vector<int32_t> tokens(static_cast<size_t>(num_seqs * options.num_drafts));
  std::vector<float> confidences(tokens.size());
  const std::vector<int64_t> counts = MeasuredSizes(num_seqs);
  for (size_t i = counts.size(); i-- > 0;) {
    if (!points.empty() && clock.NowSeconds() - begin_s > options.max_seconds) break;
    const int64_t count = counts[i];
    prepare(count, count);
    DI_RETURN_IF_ERROR(model.Forward(chunks).status());
    drafts.clear();
    for (int64_t s = 0; s < count; ++s) drafts.push_back({static_cast<int32_t>(s + 1), ids[static_cast<size_t>(s)]});
    const double share = 0.7 + 0.3 * static_cast<double>(counts.size() - i) / static_cast<double>(counts.size());
    DI_ASSIGN_OR_RETURN(const double ms, time(
                                             share, [&] { return model.Draft(drafts, options.num_drafts, chooser, tokens, confidences); }, [] {}));
    points.emplace_back(count, ms);
  }
  std::reverse(points.begin(), points.end());
  curves.draft = CostCurve(std::move(points));
  return curves;
}

CostCache::CostCache(std::string dir, std::string_view key, int64_t ttl_s) : dir_(std::move(dir)), ttl_s_(ttl_s) {
  name_ = Sha256Of(key).ToHex();
}

CostCurve CostCache::Load(const std::vector<int64_t>& sizes, int64_t now_s) const {
  CostCurve newest;
  int64_t newest_s = -1;
  ForEachCurve(dir_, [&](const std::string& path, const CurveName& name) {
    if (name.key != name_ || name.written_s > now_s || now_s - name.written_s > ttl_s_ || name.written_s <= newest_s) return;
    CostCurve curve = ParseCurve(path);
    if (curve.is_empty()) return;
    const auto& points = curve.points();
    const bool has_sizes = sizes.empty() || std::equal(points.begin(), points.end(), sizes.begin(), sizes.end(),
                                                       [](const auto& point, int64_t size) { return point.first == size; });
    if (!has_sizes) return;
    newest = std::move(curve);
    newest_s = name.written_s;
  });
  return newest;
}

void CostCache::Store(const CostCurve& curve, int64_t now_s) const {
  Json json = Json::array();
  for (const auto& [size, ms] : curve.points()) json.push_back({size, ms});
  std::random_device device;
  const std::string name = fmt::format("{}.{:08x}{:08x}{:08x}{:08x}.{}", name_, device(), device(), device(), device(), now_s);
  std::error_code error;
  std::filesystem::create_directories(dir_, error);
  if (const Status status = WriteFileAtomically((std::filesystem::path(dir_) / name).string(), DumpJson(json) + "\n"); !status.ok())
    DI_LOG(warn, "the cost curve is not kept for the next start: {}", status.message());
}

void CostCache::DeleteExpired(int64_t now_s) const {
  ForEachCurve(dir_, [&](const std::string& path, const CurveName& name) {
    if (now_s - name.written_s <= ttl_s_ + kKeepExpired) return;
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  });
}

}  // namespace deepinfer::engine
