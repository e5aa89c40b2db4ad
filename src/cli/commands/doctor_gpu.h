// SPDX-License-Identifier: Apache-2.0
//
// The part of `doctor` about accelerators: what the NVIDIA backend sees, or why it sees nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace deepinfer::cli {

// {"gpus": [...], "nvidia_problem": a line or null}. A GPU has vendor and name; what the backend sees (cuda_plugin: its file, empty
// = beside the program) also index, capability, memory_bytes, free_bytes, has_code and driver.
Json GpuReport(std::string_view cuda_plugin);

// Sets "fits" of every GPU of which the free memory is known: needed_bytes is what the model takes there.
void AddGpuFit(Json& gpus, int64_t needed_bytes);

// For people, one line a GPU; `model` is what the fit is about.
std::vector<std::string> GpuLines(const Json& gpus, const Json& nvidia_problem, const std::string& model);

// Graphics and accelerator functions on the PCI bus of one vendor.
int CountPciDevices(const std::string& vendor, std::initializer_list<std::string_view> class_prefixes);

}  // namespace deepinfer::cli
