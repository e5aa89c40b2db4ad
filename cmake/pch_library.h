// SPDX-License-Identifier: Apache-2.0
//
// Headers of other projects and of the standard library that most files of the library include: parsed once (DEEPINFER_PCH).
// Sources include what they use all the same; a build without this header (DEEPINFER_PCH=OFF) shows what is missing.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
