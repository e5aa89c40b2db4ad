// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "sampling/row_ops.h"
#include "sampling/verify.h"

namespace deepinfer::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float KeyToFloat(int32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff)); }

// The bits of a probability are found in three radix steps, most significant digit first.
struct Digit {
  int shift;
  int bits;
};
// Probabilities are below 2, so the first digit needs 11 bits.
constexpr Digit kDigits[] = {{19, 11}, {8, 11}, {0, 8}};

uint32_t FixedPoint(float p) { return static_cast<uint32_t>(static_cast<double>(p) * 2147483648.0); }

}  // namespace

Sampler::Sampler(int vocab_size)
    : vocab_size_(vocab_size),
      num_lanes_(NumLanes(vocab_size)),
      modified_(static_cast<size_t>(vocab_size)),
      logprobs_(static_cast<size_t>(vocab_size)),
      probs_(static_cast<size_t>(vocab_size)),
      weights_(static_cast<size_t>(vocab_size)),
      lanes_(static_cast<size_t>(num_lanes_)),
      bucket_counts_(size_t{1} << kDigits[0].bits),
      bucket_masses_(size_t{1} << kDigits[0].bits),
      candidates_(static_cast<size_t>(vocab_size)),
      draw_(vocab_size) {}

void Sampler::ApplyMasksAndPenalties(std::span<const float> logits,
                                     const SamplingParams& params,
                                     const RowContext& context) {
  const bool has_penalties = params.has_penalties() && context.counts != nullptr;
  if (!params.allowed_token_ids && params.logit_bias.empty() && context.allowed_mask.empty() &&
      context.grammar_mask.empty() && context.banned_ids.empty() && !has_penalties) {
    row_ = logits;
    return;
  }
  const RowOps& ops = GetRowOps();
  if (params.allowed_token_ids) {
    std::fill(modified_.begin(), modified_.end(), -kInfinity);
    for (const int32_t id : *params.allowed_token_ids) {
      modified_[static_cast<size_t>(id)] = logits[static_cast<size_t>(id)];
    }
  } else {
    std::copy(logits.begin(), logits.end(), modified_.begin());
  }
  for (const auto& [id, bias] : params.logit_bias) modified_[static_cast<size_t>(id)] += static_cast<float>(bias);
  for (const int32_t id : context.banned_ids) modified_[static_cast<size_t>(id)] = -kInfinity;
  if (!context.allowed_mask.empty()) ops.apply_mask(modified_.data(), vocab_size_, context.allowed_mask.data());
  if (has_penalties) ApplyPenalties(params, context);
  if (!context.grammar_mask.empty()) ops.apply_mask(modified_.data(), vocab_size_, context.grammar_mask.data());
  row_ = modified_;
}

// repetition: l > 0 ? l / r : l * r for every token of the context; then l -= frequency * count and l -= presence if the
// output holds the token. Drafts before this row count as output.
void Sampler::ApplyPenalties(const SamplingParams& params, const RowContext& context) {
  const float repetition = static_cast<float>(params.repetition_penalty);
  const float frequency = static_cast<float>(params.frequency_penalty);
  const float presence = static_cast<float>(params.presence_penalty);
  const auto apply = [&](int32_t id) {
    const auto in_drafts = std::count(context.drafts_before.begin(), context.drafts_before.end(), id);
    const int64_t count = context.counts->output_count(id) + in_drafts;
    float& l = modified_[static_cast<size_t>(id)];
    l = l > 0 ? l / repetition : l * repetition;
    if (count > 0) {
      l -= frequency * static_cast<float>(count);
      l -= presence;
    }
  };
  for (const int32_t id : context.counts->seen_ids()) apply(id);
  for (size_t i = 0; i < context.drafts_before.size(); ++i) {
    const int32_t id = context.drafts_before[i];
    const auto earlier = context.drafts_before.first(i);
    if (id < 0 || id >= vocab_size_ || context.counts->is_seen(id)) continue;
    if (std::find(earlier.begin(), earlier.end(), id) == earlier.end()) apply(id);
  }
}

Result<Sampler::RowSum> Sampler::SumRow(std::span<const float> row, float inv_t) {
  const RowOps& ops = GetRowOps();
  RowSum sum;
  const int32_t key = ops.max_key(row.data(), vocab_size_);
  sum.max = KeyToFloat(key);
  if (sum.max == -kInfinity) return Internal("invalid logits: every token is banned or -infinity");
  if (!std::isfinite(sum.max)) return Internal("invalid logits: the row holds NaN or +infinity; check the weights with deepinfer inspect --verify");
  const float total = ops.sum_exp(row.data(), vocab_size_, sum.max, inv_t, lanes_.data(), num_lanes_);
  if (!std::isfinite(total)) return Internal("invalid logits: the row holds NaN; check the weights with deepinfer inspect --verify");
  sum.log_sum = ops.log(total);
  return sum;
}

// Most tokens of a wide vocabulary are far below any cut. Those above a guessed probability are collected; when they reach a
// limit, the cut lies among them and no other token matters. -1: it does not, all tokens must be looked at.
int64_t Sampler::PreselectCandidates(double top_p, uint64_t count_limit, uint64_t mass_limit) {
  const RowOps& ops = GetRowOps();
  // Tokens below (1 - top_p) / V together weigh less than 1 - top_p.
  const float limit = top_p < 1.0 ? static_cast<float>(0.5 * (1.0 - top_p) / vocab_size_)
                                  : KeyToFloat(ops.max_key(probs_.data(), vocab_size_)) * 0x1p-14f;
  const int64_t count = ops.collect_at_least(probs_.data(), vocab_size_, limit, candidates_.data());
  if (static_cast<uint64_t>(count) > count_limit) return count;
  uint64_t mass = 0;
  for (int64_t i = 0; i < count; ++i) mass += weights_[static_cast<size_t>(candidates_[static_cast<size_t>(i)])];
  return mass >= mass_limit ? count : -1;
}

// The lowest probability that joint top-p and top-k keep. Tokens stand in the order (probability desc, id asc); token k is
// kept iff k < top_k and the fixed-point mass strictly before it is below floor(top_p * 2^31) + 1.
Sampler::Cutoff Sampler::FindCutoff(double top_p, int64_t top_k) {
  const uint64_t mass_limit =
      top_p < 1.0 ? static_cast<uint64_t>(std::floor(top_p * 2147483648.0)) + 1 : std::numeric_limits<uint64_t>::max();
  const uint64_t count_limit =
      top_k > 0 ? static_cast<uint64_t>(top_k) : static_cast<uint64_t>(vocab_size_);
  uint64_t count = 0;
  uint64_t mass = 0;
  uint32_t prefix = 0;  // digits found so far
  int64_t num_candidates = PreselectCandidates(top_p, count_limit, mass_limit);  // -1: all tokens
  for (const Digit& digit : kDigits) {
    const size_t num_buckets = size_t{1} << digit.bits;
    const uint32_t digit_mask = static_cast<uint32_t>(num_buckets - 1);
    std::fill_n(bucket_counts_.begin(), num_buckets, 0u);
    std::fill_n(bucket_masses_.begin(), num_buckets, uint64_t{0});
    const auto add = [&](size_t id) {
      const float p = probs_[id];
      const size_t bucket = (std::bit_cast<uint32_t>(p) >> digit.shift) & digit_mask;
      ++bucket_counts_[bucket];
      bucket_masses_[bucket] += weights_[id];
    };
    if (num_candidates < 0) {
      for (size_t id = 0; id < static_cast<size_t>(vocab_size_); ++id) add(id);
    } else {
      for (int64_t i = 0; i < num_candidates; ++i) add(static_cast<size_t>(candidates_[static_cast<size_t>(i)]));
    }
    // The bucket in which a limit is reached.
    size_t bucket = num_buckets - 1;
    while (count + bucket_counts_[bucket] <= count_limit && mass + bucket_masses_[bucket] < mass_limit) {
      count += bucket_counts_[bucket];
      mass += bucket_masses_[bucket];
      if (bucket == 0) return {};  // no limit is reached: all tokens are kept
      --bucket;
    }
    prefix |= static_cast<uint32_t>(bucket) << digit.shift;
    // Its tokens are the candidates of the next digit, in ascending id order.
    int64_t num_next = 0;
    const auto matches = [&](size_t id) { return (std::bit_cast<uint32_t>(probs_[id]) >> digit.shift) == (prefix >> digit.shift); };
    if (num_candidates < 0) {
      for (size_t id = 0; id < static_cast<size_t>(vocab_size_); ++id) {
        if (matches(id)) candidates_[static_cast<size_t>(num_next++)] = static_cast<int32_t>(id);
      }
    } else {
      for (int64_t i = 0; i < num_candidates; ++i) {
        const int32_t id = candidates_[static_cast<size_t>(i)];
        if (matches(static_cast<size_t>(id))) candidates_[static_cast<size_t>(num_next++)] = id;
      }
    }
    num_candidates = num_next;
  }
  // All candidates are equal now; the first ones by id are kept.
  Cutoff cutoff;
  cutoff.threshold = std::bit_cast<float>(prefix);
  const uint64_t weight = FixedPoint(cutoff.threshold);
  uint64_t num_ties = count_limit - count;
  if (weight > 0 && mass_limit != std::numeric_limits<uint64_t>::max()) {
    const uint64_t rest = mass_limit > mass ? mass_limit - mass : 0;
    num_ties = std::min(num_ties, (rest + weight - 1) / weight);
  }
  num_ties = std::min(num_ties, static_cast<uint64_t>(num_candidates));
  cutoff.tie_limit = num_ties == 0 ? -1 : candidates_[static_cast<size_t>(num_ties - 1)];
  return cutoff;
}

// Fills logprobs_ with the renormalised log probabilities and weights_ with their fixed-point values.
void Sampler::ProcessRow(const SamplingParams& params, const RowSum& sum, float inv_t) {
  const RowOps& ops = GetRowOps();
  ops.log_probs(row_.data(), vocab_size_, sum.max, inv_t, sum.log_sum, logprobs_.data(), probs_.data());
  ops.weights_from_probs(probs_.data(), vocab_size_, weights_.data());
  const bool has_cutoff = params.top_p < 1.0 || (params.top_k > 0 && params.top_k < vocab_size_);
  if (!has_cutoff && params.min_p <= 0.0) return;  // nothing is dropped, so nothing is renormalised
  const Cutoff cutoff = has_cutoff ? FindCutoff(params.top_p, params.top_k) : Cutoff{};
  float min_p = 0.0f;
  if (params.min_p > 0.0) {
    // exp is not exactly monotone in the last bit, so the largest probability is looked up, not computed from the maximum.
    min_p = static_cast<float>(params.min_p) * KeyToFloat(ops.max_key(probs_.data(), vocab_size_));
  }
  const float mass = ops.keep(probs_.data(),
                              logprobs_.data(),
                              vocab_size_,
                              cutoff.threshold,
                              cutoff.tie_limit,
                              min_p,
                              lanes_.data(),
                              num_lanes_);
  ops.subtract(logprobs_.data(), vocab_size_, ops.log(mass));
  ops.weights(logprobs_.data(), vocab_size_, weights_.data());
}

namespace {

}  // namespace

float InverseTemperature(const SamplingParams& params) {
  return 1.0f / static_cast<float>(std::max(params.temperature, kSamplingEps));
}

float Log(float x) { return GetRowOps().log(x); }

Result<std::span<const float>> Sampler::Process(std::span<const float> logits,
                                                const SamplingParams& params,
                                                const RowContext& context) {
  DI_CHECK(static_cast<int>(logits.size()) == vocab_size_) << logits.size() << " logits, vocabulary " << vocab_size_;
  ApplyMasksAndPenalties(logits, params, context);
  const float inv_t = InverseTemperature(params);
  DI_ASSIGN_OR_RETURN(const RowSum sum, SumRow(row_, inv_t));
  ProcessRow(params, sum, inv_t);
  return std::span<const float>(logprobs_);
}

Result<SampledToken> Sampler::Sample(std::span<const float> logits,
                                     const SamplingParams& params,
                                     const RowContext& context) {
  DI_CHECK(static_cast<int>(logits.size()) == vocab_size_) << logits.size() << " logits, vocabulary " << vocab_size_;
  const RowOps& ops = GetRowOps();
  ApplyMasksAndPenalties(logits, params, context);
  const float inv_t = InverseTemperature(params);
  DI_ASSIGN_OR_RETURN(const RowSum sum, SumRow(row_, inv_t));

  SampledToken token;
  const bool is_greedy = params.is_greedy();
  const bool needs_row = !is_greedy || (!context.only_token && (context.compute_sum_smaller_probs ||
                                        (params.top_logprobs > 0 && context.logprobs_mode == LogprobsMode::kProcessed)));
  if (needs_row) ProcessRow(params, sum, inv_t);
  const bool by_rejection =
      context.verifies && context.forced_id < 0 && !is_greedy && context.draw_mode == DrawMode::kInverseCdf;
  if (context.forced_id >= 0) {
    token.id = context.forced_id;
  } else if (by_rejection) {
    const VerifiedRow row =
        VerifyByRejection(logprobs_, context.draft_id, context.draft_logprobs, context.seed, context.position, draw_);
    token.id = row.id;
    token.is_accepted = row.is_accepted;
    token.estimated_acceptance = row.estimated_acceptance;
  } else if (is_greedy) {
    token.id = static_cast<int32_t>(ops.find_equal(row_.data(), vocab_size_, sum.max));
  } else {
    const PhiloxStream stream(context.seed, context.position, DrawCase::kTarget);
    token.id = context.draw_mode == DrawMode::kRace ? DrawRace(weights_, stream, draw_)
                                                    : DrawInverseCdf(weights_, stream, draw_);
    // Only a row flatter than 2^-31 per token has no weights; its best token stands for it.
    if (token.id < 0) token.id = static_cast<int32_t>(ops.find_equal(row_.data(), vocab_size_, sum.max));
  }

  if (context.verifies && !by_rejection) {
    token.is_accepted = token.id == context.draft_id;
    token.estimated_acceptance = token.is_accepted ? 1.0f : 0.0f;
  }

  if (context.only_token) return token;
  const size_t id = static_cast<size_t>(token.id);
  if (context.logprobs_mode == LogprobsMode::kRaw) {
    DI_ASSIGN_OR_RETURN(const RowSum raw, SumRow(logits, 1.0f));
    token.logprob = (logits[id] - raw.max) - raw.log_sum;
    if (params.top_logprobs > 0) {
      TopLogprobs(logits, params.top_logprobs, token);
      for (float& l : token.top_logprobs) l = std::max((l - raw.max) - raw.log_sum, kLogprobFloor);
    }
  } else {
    token.logprob = needs_row ? logprobs_[id] : (row_[id] - sum.max) * inv_t - sum.log_sum;
    if (params.top_logprobs > 0) {
      TopLogprobs(logprobs_, params.top_logprobs, token);
      for (float& l : token.top_logprobs) l = std::max(l, kLogprobFloor);
    }
  }
  token.logprob = std::max(token.logprob, kLogprobFloor);
  if (context.compute_sum_smaller_probs) {
    token.sum_smaller_probs =
        ops.sum_smaller(logprobs_.data(), vocab_size_, logprobs_[id], token.id, lanes_.data(), num_lanes_);
  }
  return token;
}

float Sampler::RawLogprob(std::span<const float> logits, int32_t id) {
  const Result<RowSum> sum = SumRow(logits, 1.0f);
  if (!sum.ok() || id < 0 || id >= vocab_size_) return kLogprobFloor;
  return std::max((logits[static_cast<size_t>(id)] - sum->max) - sum->log_sum, kLogprobFloor);
}

// The k best values by (value desc, id asc): a heap whose top is the worst one kept.
void Sampler::TopLogprobs(std::span<const float> values, int k, SampledToken& out) {
  const size_t num_kept = std::min(static_cast<size_t>(k), values.size());
  const auto is_better = [&](int32_t a, int32_t b) {
    const float va = values[static_cast<size_t>(a)];
    const float vb = values[static_cast<size_t>(b)];
    return va > vb || (va == vb && a < b);
  };
  std::vector<int32_t>& heap = out.top_ids;
  heap.clear();
  heap.reserve(num_kept);
  for (size_t id = 0; id < values.size(); ++id) {
    if (heap.size() < num_kept) {
      heap.push_back(static_cast<int32_t>(id));
      std::push_heap(heap.begin(), heap.end(), is_better);
    } else if (values[id] > values[static_cast<size_t>(heap.front())]) {
      std::pop_heap(heap.begin(), heap.end(), is_better);
      heap.back() = static_cast<int32_t>(id);
      std::push_heap(heap.begin(), heap.end(), is_better);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), is_better);
  out.top_logprobs.clear();
  for (const int32_t id : heap) out.top_logprobs.push_back(values[static_cast<size_t>(id)]);
}

}  // namespace deepinfer::sampling
