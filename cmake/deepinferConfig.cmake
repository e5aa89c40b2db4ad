# SPDX-License-Identifier: Apache-2.0
# find_package(deepinfer) gives the target deepinfer::deepinfer; its header is deepinfer/llm.h.
include(${CMAKE_CURRENT_LIST_DIR}/deepinferTargets.cmake)
