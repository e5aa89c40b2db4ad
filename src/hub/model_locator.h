// SPDX-License-Identifier: Apache-2.0
//
// ResolveModelDir: a directory, a hub id ("owner/name", looked up in the local hub cache) or "demo" (the embedded model,
// found beside the binary) to the directory that holds config.json. Errors are kBadModel and name the remedy.
#pragma once

#include <string>
#include <vector>

#include "core/config_env.h"
#include "core/status.h"

namespace deepinfer::hub {

struct LocateOptions {
  Environment environment = Environment::FromProcess();
  std::string revision = "main";  // branch, tag or commit of a hub id
  // Directory of the binary that asks; empty = of the program or shared library this function is linked into.
  std::string binary_dir;
};

Result<std::string> ResolveModelDir(const std::string& model, const LocateOptions& options = {});

// Whether the text has the form owner/name of a hub id.
bool IsHubId(const std::string& model);

// Where hub checkpoints are cached on this machine.
std::string HubCacheDir(const Environment& environment);

// Places where "demo" is looked for, in order.
std::vector<std::string> DemoCandidates(const std::string& binary_dir);

}  // namespace deepinfer::hub
