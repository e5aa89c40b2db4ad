// SPDX-License-Identifier: Apache-2.0
//
// What a device needs to read a checkpoint's experts from its files instead of keeping them in memory.
#pragma once

#include <string>

#include "device/device.h"
#include "model/checkpoint.h"

namespace deepinfer::model {

// The files and the fingerprint (names, sizes and change times of the shards); budget and back end are the caller's.
device::ExpertStreaming ExpertFiles(const Checkpoint& checkpoint);

// Where the pack file of a checkpoint lies. where: "off" (empty path), "beside" (in its directory) or a directory.
std::string PackPath(const Checkpoint& checkpoint, const std::string& where);

}  // namespace deepinfer::model
