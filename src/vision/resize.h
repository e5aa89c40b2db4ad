// SPDX-License-Identifier: Apache-2.0
//
// The three resizers that images pass through, each equal to its original bit for bit (tests/vision/resize_test.cc). They give
// different pixels by design: never use one in place of another. The order of every float operation matters, and none may be
// contracted to a fused one (-ffp-contract=off for the whole project).
#pragma once

#include "vision/image.h"

namespace deepinfer::vision {

// OpenCV's INTER_CUBIC for 8 bits: four taps, no antialiasing. The public service.
Image ResizeCubic(const Image& image, Size size);

// OpenCV's INTER_AREA, downwards only. The public service's low detail.
Image ResizeArea(const Image& image, Size size);

// Pillow 11's bicubic with antialiasing, horizontal pass first. The model's own transform.
Image ResizePillowBicubic(const Image& image, Size size);

}  // namespace deepinfer::vision
