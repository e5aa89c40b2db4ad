// SPDX-License-Identifier: Apache-2.0
#include "cli/version.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "backends/registry.h"
#include "core/cpu_features.h"
#include "core/json.h"
#include "deepinfer_version.h"

namespace deepinfer::cli {

namespace {

std::string Compiler() {
#if defined(__clang__)
  return fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace

std::string Version() { return DEEPINFER_VERSION; }
std::string Commit() { return DEEPINFER_COMMIT; }
bool IsDirty() { return DEEPINFER_DIRTY; }

void PrintVersion(bool json, Output& out) {
  const std::vector<std::string> backends = backends::AvailableBackends();
  const std::string cpu_path(CpuIsaName(BestCpuIsa()));
  if (json) {
    out.Line(DumpJson(Json{{"version", Version()},
                           {"commit", Commit()},
                           {"compiler", Compiler()},
                           {"build_type", DEEPINFER_BUILD_TYPE},
                           {"backends", backends},
                           {"cpu_path", cpu_path}}));
    return;
  }
  out.Line(fmt::format("deepinfer {} (commit {}, {} {})", Version(), Commit(), Compiler(), DEEPINFER_BUILD_TYPE));
  out.Line(fmt::format("backends: {}; CPU path: {}", fmt::join(backends, ", "), cpu_path));
}

}  // namespace deepinfer::cli
