// SPDX-License-Identifier: Apache-2.0
#include "core/metrics.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "core/check.h"

namespace deepinfer {

namespace {

bool IsMetricName(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || is_digit(c); });
}

// All metrics of one type: families by name, wrappers by label set.
template <typename Raw, typename Wrapper>
struct Kind {
  struct Family {
    prometheus::Family<Raw>* family = nullptr;
    std::vector<double> buckets;
    std::map<MetricLabels, std::unique_ptr<Wrapper>> metrics;
  };
  std::map<std::string, Family, std::less<>> families;
};

}  // namespace

struct MetricsRegistry::Impl {
  mutable std::mutex mutex;
  prometheus::Registry registry;
  // Guarded by mutex.
  std::map<std::string, char, std::less<>> types;
  Kind<prometheus::Counter, Counter> counters;
  Kind<prometheus::Gauge, Gauge> gauges;
  Kind<prometheus::Histogram, Histogram> histograms;

  void CheckName(std::string_view name, char type) {
    DI_CHECK(IsMetricName(name)) << "metric name " << std::string(name);
    const auto [it, unused] = types.emplace(std::string(name), type);
    DI_CHECK(it->second == type) << "metric " << std::string(name) << " has two types";
  }

  template <typename Raw, typename Wrapper, typename Build, typename Add>
  Wrapper& Get(Kind<Raw, Wrapper>& kind, char type, std::string_view name, const MetricLabels& labels, Build build, Add add) {
    const std::lock_guard<std::mutex> lock(mutex);
    CheckName(name, type);
    auto& family = kind.families[std::string(name)];
    if (family.family == nullptr) family.family = &build(family);
    MetricLabels key = labels;
    if (!family.metrics.contains(key) && family.metrics.size() >= kMaxLabelSets) {
      for (auto& [unused, value] : key) value = "other";
    }
    std::unique_ptr<Wrapper>& wrapper = family.metrics[key];
    if (!wrapper) wrapper = std::make_unique<Wrapper>(add(family, key));
    return *wrapper;
  }
};

void Counter::Add(double value) { metric_.Increment(value); }
double Counter::value() const { return metric_.Value(); }
void Gauge::Set(double value) { metric_.Set(value); }
void Gauge::Add(double value) { metric_.Increment(value); }
double Gauge::value() const { return metric_.Value(); }
void Histogram::Observe(double value) { metric_.Observe(value); }

std::span<const double> SecondsBuckets() {
  static constexpr std::array<double, 17> kBuckets = {.005, .01, .025, .05, .1, .2, .4,  .8, 1.5,
                                                      3,    6,   12,   25,  60, 120, 300, 600};
  return kBuckets;
}

MetricsRegistry::MetricsRegistry() : impl_(std::make_unique<Impl>()) {}
MetricsRegistry::~MetricsRegistry() = default;

MetricsRegistry& MetricsRegistry::Global() {
  static MetricsRegistry registry;
  return registry;
}

Counter& MetricsRegistry::GetCounter(std::string_view name, std::string_view help, const MetricLabels& labels) {
  return impl_->Get(
      impl_->counters, 'c', name, labels,
      [&](auto&) -> auto& { return prometheus::BuildCounter().Name(std::string(name)).Help(std::string(help)).Register(impl_->registry); },
      [](auto& family, const MetricLabels& key) -> auto& { return family.family->Add(key); });
}

Gauge& MetricsRegistry::GetGauge(std::string_view name, std::string_view help, const MetricLabels& labels) {
  return impl_->Get(
      impl_->gauges, 'g', name, labels,
      [&](auto&) -> auto& { return prometheus::BuildGauge().Name(std::string(name)).Help(std::string(help)).Register(impl_->registry); },
      [](auto& family, const MetricLabels& key) -> auto& { return family.family->Add(key); });
}

Histogram& MetricsRegistry::GetHistogram(std::string_view name, std::string_view help, std::span<const double> buckets,
                                         const MetricLabels& labels) {
  return impl_->Get(
      impl_->histograms, 'h', name, labels,
      [&](auto& family) -> auto& {
        family.buckets.assign(buckets.begin(), buckets.end());
        DI_CHECK(std::is_sorted(family.buckets.begin(), family.buckets.end())) << "buckets of " << std::string(name);
        return prometheus::BuildHistogram().Name(std::string(name)).Help(std::string(help)).Register(impl_->registry);
      },
      [](auto& family, const MetricLabels& key) -> auto& { return family.family->Add(key, family.buckets); });
}

std::string MetricsRegistry::TextExposition() const { return prometheus::TextSerializer().Serialize(impl_->registry.Collect()); }

}  // namespace deepinfer
