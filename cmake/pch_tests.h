// SPDX-License-Identifier: Apache-2.0
//
// What most tests include, parsed once (DEEPINFER_PCH).
#pragma once

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pch_library.h"
