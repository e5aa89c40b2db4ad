// SPDX-License-Identifier: Apache-2.0
//
// The keys of cached prefixes under the engine's name: the store's (kvstore/block_key.h), so that a block has one key in
// device memory, host memory and on disk.
#pragma once

#include "kvstore/block_key.h"

namespace deepinfer::engine {

using kvstore::BlockKey;
using kvstore::CacheFingerprint;
using kvstore::ExtendKeys;
using kvstore::ForkParentKey;
using kvstore::ImageDigest;
using kvstore::ImageSpan;
using kvstore::Key256;
using kvstore::Key256Hash;
using kvstore::kTokensPerBlock;
using kvstore::NumericsClass;
using kvstore::RootKey;
using kvstore::Sha256Of;
using kvstore::StateKey;
using kvstore::TenantSalt;

}  // namespace deepinfer::engine
