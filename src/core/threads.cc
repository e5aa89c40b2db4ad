// SPDX-License-Identifier: Apache-2.0
//
// How a phase runs. Every node has a `ticket`: the phase number and the tiles of the node that nobody has taken yet. A thread
// takes one by compare-and-swap, first of its own node, then of the others, so a worker that wakes up late can neither take a
// tile of a finished phase nor see its job. `pending` counts tiles that are not finished; the caller leaves when it is zero.
// A thread reports its tiles once, when it finds no more to take. The job's fields are plain memory: they are written before
// the first ticket is published and stay as they are while any taken tile is unreported. `wake` changes when all tickets are
// out, so a worker that looked too early looks again.
#include "core/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <exception>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <fmt/format.h>

#include "core/check.h"

namespace deepinfer {
namespace {

// How long an idle thread watches for work before it sleeps. Waking a sleeping thread takes tens of microseconds on virtual
// machines, so it has to outlast the serial stretches of a step. After kEagerSpin it offers its core to others between looks.
constexpr std::chrono::nanoseconds kSpin = std::chrono::microseconds(200);
constexpr std::chrono::nanoseconds kEagerSpin = std::chrono::microseconds(10);
constexpr int kMaxThreads = 1024;

inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns when *word may differ from `seen`.
void WaitWhileEqual(std::atomic<uint32_t>& word, uint32_t seen) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
  word.wait(seen);
#endif
}

void Wake(std::atomic<uint32_t>& word, int count) {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
#else
  if (count == 1) {
    word.notify_one();
  } else {
    word.notify_all();
  }
#endif
}

// Spins for a short while; true as soon as done() is.
template <typename F>
bool SpinUntil(F&& done) {
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration waited{};
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      CpuRelax();
    }
    waited = std::chrono::steady_clock::now() - begin;
    if (waited > kEagerSpin) sched_yield();
  } while (waited < kSpin);
  return done();
}

thread_local bool tls_in_tile = false;
thread_local int tls_thread_idx = 0;

// A refusal costs speed only.
void PinThisThread(const std::vector<int>& cpus) {
#if defined(__linux__)
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu < CPU_SETSIZE) CPU_SET(static_cast<size_t>(cpu), &set);
  sched_setaffinity(0, sizeof(set), &set);
#else
  static_cast<void>(cpus);
#endif
}

// Whole processors that the control group grants, 0 = no limit.
int CgroupCpus() {
  const auto cpus_of = [](double quota, double period) {
    return quota > 0 && period > 0 ? std::max(1, static_cast<int>(quota / period)) : 0;
  };
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2) {
    std::string quota;
    double period = 0;
    if (v2 >> quota >> period && quota != "max") return cpus_of(std::strtod(quota.c_str(), nullptr), period);
    return 0;
  }
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (quota_file >> quota && period_file >> period) return cpus_of(quota, period);
  return 0;
}

}  // namespace

Result<CpuPinning> ParseCpuPinning(std::string_view name) {
  if (name == "auto" || name.empty()) return CpuPinning::kAuto;
  if (name == "none") return CpuPinning::kNone;
  if (name == "node") return CpuPinning::kNode;
  if (name == "core") return CpuPinning::kCore;
  return InvalidArgument(fmt::format("cpu-pinning must be auto, none, node or core, got \"{}\"", name), "cpu_pinning");
}

struct ThreadPool::State {
  struct alignas(64) Node {
    std::atomic<uint64_t> ticket{0};  // phase << 32 | tiles not taken
    // The node's tiles of the current phase: `count` of them, `width` at `begin` of every period.
    uint32_t count = 0;
    int64_t begin = 0;
    int64_t width = 0;
    // Where its share of a period lies, in threads: [first_thread, last_thread) of all.
    int first_thread = 0;
    int last_thread = 0;
  };
  std::unique_ptr<Node[]> nodes;
  int num_nodes = 1;
  std::vector<int> node_of_thread;
  alignas(64) std::atomic<uint32_t> pending{0};  // tiles not finished
  alignas(64) std::atomic<uint32_t> wake{0};  // changes with every phase; idle workers sleep on it
  std::atomic<uint32_t> num_sleeping{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stop{false};
  // The job of the current phase.
  TileFn fn = nullptr;
  void* context = nullptr;
  int64_t period = 0;
  int num_threads = 1;

  std::vector<std::thread> workers;

  // The node's share [begin, end) of `period` tiles.
  int64_t ShareBegin(const Node& node, int64_t tiles) const { return tiles * node.first_thread / num_threads; }
  int64_t ShareEnd(const Node& node, int64_t tiles) const { return tiles * node.last_thread / num_threads; }

  // Takes and runs tiles of one node until none is left; returns how many.
  uint32_t WorkOn(Node& node, int thread_idx) {
    uint32_t finished = 0;
    uint64_t seen = node.ticket.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(seen) != 0) {
      if (!node.ticket.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      // Ascending, so that neighbouring tiles of a weight stream are read in memory order.
      const int64_t i = int64_t{node.count} - static_cast<uint32_t>(seen);
      fn(context, num_nodes == 1 ? i : i / node.width * period + node.begin + i % node.width, thread_idx);
      ++finished;
      seen = node.ticket.load(std::memory_order_acquire);
    }
    return finished;
  }

  bool HasTiles() const {
    for (int i = 0; i < num_nodes; ++i)
      if (static_cast<uint32_t>(nodes[static_cast<size_t>(i)].ticket.load(std::memory_order_relaxed)) != 0) return true;
    return false;
  }

  // Takes and runs tiles until none is left, then reports them. True if it ran any.
  bool Work(int thread_idx) {
    uint32_t finished = 0;
    const int own = node_of_thread[static_cast<size_t>(thread_idx)];
    for (int i = 0; i < num_nodes; ++i) finished += WorkOn(nodes[static_cast<size_t>((own + i) % num_nodes)], thread_idx);
    if (finished == 0) return false;
    if (pending.fetch_sub(finished, std::memory_order_seq_cst) == finished &&
        caller_sleeps.load(std::memory_order_seq_cst)) {
      Wake(pending, 1);
    }
    return true;
  }

  void WorkerLoop(int thread_idx) {
    tls_in_tile = true;  // a worker runs nothing but tiles
    tls_thread_idx = thread_idx;
    while (!stop.load(std::memory_order_acquire)) {
      const uint32_t seen_wake = wake.load(std::memory_order_acquire);
      if (Work(thread_idx)) continue;
      const auto has_work = [this] { return HasTiles() || stop.load(std::memory_order_relaxed); };
      if (SpinUntil(has_work)) continue;
      // Announce, then sleep unless a phase began since: the caller changes `wake` before it looks at num_sleeping.
      num_sleeping.fetch_add(1, std::memory_order_seq_cst);
      WaitWhileEqual(wake, seen_wake);
      num_sleeping.fetch_sub(1, std::memory_order_seq_cst);
    }
  }
};

ThreadPool::ThreadPool(int num_threads, CpuPinning pinning) : ThreadPool(num_threads, CpuTopology::Read(), pinning) {}

ThreadPool::ThreadPool(int num_threads, const CpuTopology& topology, CpuPinning pinning) : state_(std::make_unique<State>()) {
  num_threads_ = std::clamp(num_threads > 0 ? num_threads : NumAvailableCores(), 1, kMaxThreads);
  State& s = *state_;
  s.num_threads = num_threads_;
  s.num_nodes = static_cast<int>(topology.nodes.size());
  s.nodes = std::make_unique<State::Node[]>(topology.nodes.size());
  s.node_of_thread.resize(static_cast<size_t>(num_threads_));
  if (pinning == CpuPinning::kAuto) pinning = s.num_nodes > 1 ? CpuPinning::kNode : CpuPinning::kNone;
  const std::vector<int> shares = topology.ShareThreads(num_threads_);
  std::vector<std::vector<int>> cpus(static_cast<size_t>(num_threads_));  // where each thread may run; empty: anywhere
  for (int node = 0, thread = 0; node < s.num_nodes; ++node) {
    s.nodes[static_cast<size_t>(node)].first_thread = thread;
    const std::vector<int>& node_cpus = topology.nodes[static_cast<size_t>(node)].cpus;
    for (int i = 0; i < shares[static_cast<size_t>(node)]; ++i, ++thread) {
      s.node_of_thread[static_cast<size_t>(thread)] = node;
      if (pinning == CpuPinning::kNode) cpus[static_cast<size_t>(thread)] = node_cpus;
      if (pinning == CpuPinning::kCore) cpus[static_cast<size_t>(thread)] = {node_cpus[static_cast<size_t>(i) % node_cpus.size()]};
    }
    s.nodes[static_cast<size_t>(node)].last_thread = thread;
  }
  s.workers.reserve(static_cast<size_t>(num_threads_ - 1));
  for (int i = 1; i < num_threads_; ++i) {
    // Memory or a limit may refuse a thread: the pool then works with those it has; results do not depend on the number.
    try {
      s.workers.emplace_back([state = state_.get(), i, allowed = std::move(cpus[static_cast<size_t>(i)])] {
        PinThisThread(allowed);
        state->WorkerLoop(i);
      });
    } catch (const std::exception&) {
      num_threads_ = i;
      break;
    }
  }
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_seq_cst);
  state_->wake.fetch_add(1, std::memory_order_seq_cst);
  Wake(state_->wake, INT_MAX);
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::num_nodes() const { return state_->num_nodes; }

int ThreadPool::NodeOfTile(int64_t tile, int64_t period) const {
  int node = 0;
  while (tile % period >= state_->ShareEnd(state_->nodes[static_cast<size_t>(node)], period)) ++node;
  return node;
}

int ThreadPool::CurrentThreadIdx() { return tls_thread_idx; }

void ThreadPool::Run(int64_t num_tiles, int64_t period, TileFn fn, const void* context) {
  void* const job = const_cast<void*>(context);
  if (tls_in_tile) {
    for (int64_t i = 0; i < num_tiles; ++i) fn(job, i, tls_thread_idx);
    return;
  }
  DI_CHECK(num_tiles < INT_MAX && num_tiles % period == 0) << "num_tiles " << num_tiles << ", period " << period;
  State& s = *state_;
  DI_DCHECK(s.pending.load() == 0) << "two threads use one pool";
  s.fn = fn;
  s.context = job;
  s.period = period;
  for (int i = 0; i < s.num_nodes; ++i) {
    State::Node& node = s.nodes[static_cast<size_t>(i)];
    node.begin = s.ShareBegin(node, period);
    node.width = s.ShareEnd(node, period) - node.begin;
    node.count = static_cast<uint32_t>(num_tiles / period * node.width);
  }
  s.pending.store(static_cast<uint32_t>(num_tiles), std::memory_order_relaxed);
  const uint64_t phase = (s.nodes[0].ticket.load(std::memory_order_relaxed) >> 32) + 1;
  for (int i = 0; i < s.num_nodes; ++i) {
    State::Node& node = s.nodes[static_cast<size_t>(i)];
    node.ticket.store(phase << 32 | node.count, std::memory_order_release);
  }
  s.wake.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t sleeping = s.num_sleeping.load(std::memory_order_seq_cst);
  if (sleeping > 0) Wake(s.wake, static_cast<int>(std::min<int64_t>(sleeping, num_tiles - 1)));

  tls_in_tile = true;
  s.Work(0);
  tls_in_tile = false;
  const auto is_done = [&s] { return s.pending.load(std::memory_order_acquire) == 0; };
  if (SpinUntil(is_done)) return;
  s.caller_sleeps.store(true, std::memory_order_seq_cst);
  for (uint32_t left; (left = s.pending.load(std::memory_order_seq_cst)) != 0;) WaitWhileEqual(s.pending, left);
  s.caller_sleeps.store(false, std::memory_order_relaxed);
}

int ThreadPool::NumAvailableCores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
#endif
  if (const int quota = CgroupCpus(); quota > 0) cores = std::min(cores, quota);
  return std::max(cores, 1);
}

}  // namespace deepinfer
