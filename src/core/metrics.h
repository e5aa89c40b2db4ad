// SPDX-License-Identifier: Apache-2.0
//
// Counters, gauges and histograms with labels, and their Prometheus text. Ask the registry once and keep the reference:
// it stays valid as long as the registry, and updating it takes no lock. Names and labels are ours, never a client's; a
// metric with more than 50 label sets puts the rest under the label value "other". prometheus-cpp stands behind it.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace deepinfer {

using MetricLabels = std::map<std::string, std::string>;

class Counter {
 public:
  explicit Counter(prometheus::Counter& metric) : metric_(metric) {}
  void Add(double value = 1);  // value >= 0
  double value() const;

 private:
  prometheus::Counter& metric_;
};

class Gauge {
 public:
  explicit Gauge(prometheus::Gauge& metric) : metric_(metric) {}
  void Set(double value);
  void Add(double value);
  double value() const;

 private:
  prometheus::Gauge& metric_;
};

class Histogram {
 public:
  explicit Histogram(prometheus::Histogram& metric) : metric_(metric) {}
  void Observe(double value);

 private:
  prometheus::Histogram& metric_;
};

// Bucket bounds for request and token times, in seconds.
std::span<const double> SecondsBuckets();

class MetricsRegistry {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // The process's own. Tests make their own registry.
  static MetricsRegistry& Global();

  // The same name and labels give the same object. A name has one type, one help and one set of buckets: the first ones.
  // Thread-safe. Names must be valid ([a-zA-Z_:][a-zA-Z0-9_:]*) and keep their type: anything else is a broken invariant.
  Counter& GetCounter(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Gauge& GetGauge(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Histogram& GetHistogram(std::string_view name, std::string_view help, std::span<const double> buckets = SecondsBuckets(),
                          const MetricLabels& labels = {});

  std::string TextExposition() const;

  static constexpr size_t kMaxLabelSets = 50;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
