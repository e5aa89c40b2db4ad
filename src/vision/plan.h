// SPDX-License-Identifier: Apache-2.0
//
// From the size of a picture to the canvas the model sees, its grids and its number of tokens. Pure arithmetic in doubles, in a
// fixed order: other orders give other integers.
#pragma once

#include <optional>

#include "vision/image.h"

namespace deepinfer::vision {

// The keys of a checkpoint's vision_config that decide sizes.
struct PlanConfig {
  int patch_size = 14;
  int downsample_ratio = 3;
  int max_image_tokens = 1024;
  int min_pixels = 544 * 544;
  std::optional<double> max_wh_ratio;
};

struct Plan {
  Size canvas;
  Size patch_grid;  // patches across and down
  Size token_grid;  // image tokens across and down
  int num_tokens = 0;  // of the whole span: start, rows with newlines, end

  int num_patches() const { return patch_grid.width * patch_grid.height; }
};

// One pass (the model's own transform).
Plan PlanImage(Size size, const PlanConfig& config);

// The public service's canvas: a size that PlanImage maps to itself. Nothing where it never settles.
std::optional<Plan> FitImage(Size size, const PlanConfig& config);

// The size of a picture of low detail: 512 pixels at most.
Size LowDetailSize(Size size);

// Where the resized picture lies inside the canvas.
struct Placement {
  Size size;
  int left = 0;
  int top = 0;
};
Placement PlaceImage(Size size, Size canvas, const PlanConfig& config);

}  // namespace deepinfer::vision
