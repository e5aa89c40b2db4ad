// SPDX-License-Identifier: Apache-2.0
//
// The part of `doctor` that predicts: what of a model fits into this machine's memory and how fast it can decode and
// prefill at best, from the measured rates (model/decode_estimate.h).
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "model/config.h"
#include "model/decode_estimate.h"

namespace deepinfer::cli {

// name: how the model is called in the report.
Json PredictionReport(const model::ModelConfig& config, const std::string& name, const model::MachineRates& rates,
                      int64_t available_bytes);
// The same for people, one line each.
std::vector<std::string> PredictionLines(const Json& prediction);

}  // namespace deepinfer::cli
