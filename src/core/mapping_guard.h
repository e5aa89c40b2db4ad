// SPDX-License-Identifier: Apache-2.0
//
// Keeps the process alive when a page of a mapped file cannot be read: the file became shorter or its disk failed, and the
// kernel answers the access with SIGBUS. The page is replaced by zeros and the mapping marked as damaged; whoever computed with
// it asks for the mark afterwards and throws the result away. Bus errors anywhere else go to the handler that was there before.
#pragma once

#include <cstdint>

namespace deepinfer {

// Between the two calls the pages [data, data + bytes) are guarded. The first call of the process installs the handler. Of more
// than 4096 mappings at a time the others are not guarded.
void GuardMapping(const void* data, int64_t bytes);
void UnguardMapping(const void* data);

// Whether a page of this mapping was replaced since it is guarded.
bool IsMappingDamaged(const void* data);
// Whether one of any mapping was: one load, for hot paths.
bool IsAnyMappingDamaged();

}  // namespace deepinfer
