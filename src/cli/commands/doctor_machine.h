// SPDX-License-Identifier: Apache-2.0
//
// Parts of `doctor` about the processor, memory, limits and disk: what is there, what was measured (a few seconds in all),
// and why nothing faster is used. Each returns JSON; text is made from it in doctor.cc.
#pragma once

#include <string>

#include "core/json.h"

namespace deepinfer::cli {

// First line of a small file of /proc or /sys; "" when there is none.
std::string ReadLineOf(const std::string& path);
// Value of the first "key : value" line of a file.
std::string FieldOf(const std::string& path, const std::string& key);

// Model, cores, sockets, NUMA nodes, features, the kernels that run and those that do not with what they lack, and the
// measured arithmetic peak.
Json CpuReport(int num_threads);
// Sizes, limits of control groups, huge pages, and the measured read rates of one and of all threads.
Json MemoryReport(int num_threads);
// RLIMIT_MEMLOCK and io_uring.
Json LimitsReport();
// Measured read rates of the disk under `folder`; a large file already there is used, else a temporary one is written.
// `folder` must exist.
Json DiskRateReport(const std::string& purpose, const std::string& folder);

}  // namespace deepinfer::cli
