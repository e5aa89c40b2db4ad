// SPDX-License-Identifier: Apache-2.0
//
// deepinfer --version [--json]: version, commit, compiler, backends built in, CPU path chosen.
#pragma once

#include <string>

#include "cli/output.h"

namespace deepinfer::cli {

std::string Version();
std::string Commit();  // "unknown" outside a repository
bool IsDirty();        // built with changes that are not committed
void PrintVersion(bool json, Output& out);

}  // namespace deepinfer::cli
