# SPDX-License-Identifier: Apache-2.0
# Build options; all begin with DEEPINFER_.
option(DEEPINFER_TESTS "build the tests" ${PROJECT_IS_TOP_LEVEL})
option(DEEPINFER_BENCH "build the benchmarks" OFF)
option(DEEPINFER_FUZZ "build the fuzzers (Clang)" OFF)
option(DEEPINFER_PYTHON "build the Python module" OFF)
option(DEEPINFER_EXAMPLES "build the C++ examples" OFF)
option(DEEPINFER_INSTALL "install the program, the library and the demo model" ${PROJECT_IS_TOP_LEVEL})
option(DEEPINFER_WERROR "treat warnings in our code as errors" OFF)
set(DEEPINFER_XGRAMMAR AUTO CACHE STRING "structured outputs with xgrammar: AUTO (if third_party/cache has it), ON, OFF")
set(DEEPINFER_URING AUTO CACHE STRING "asynchronous file reads through liburing: AUTO (if it is there), ON, OFF")
set(DEEPINFER_PCH AUTO CACHE STRING "precompiled headers: ON, OFF, AUTO (ON without ccache)")
set(DEEPINFER_TEST_FLAGS "" CACHE STRING "more compiler flags for the tests' own sources, such as -O1")
set(DEEPINFER_SANITIZE "" CACHE STRING "address, thread, undefined or a comma list")

if(NOT CMAKE_BUILD_TYPE AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(CMAKE_INSTALL_RPATH "\$ORIGIN/../lib/deepinfer")

find_program(DEEPINFER_CCACHE ccache)
if(DEEPINFER_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DEEPINFER_CCACHE})
endif()

# A faster linker where there is one; it changes nothing but the time to link.
find_program(DEEPINFER_MOLD mold)
if(DEEPINFER_MOLD AND PROJECT_IS_TOP_LEVEL)
  add_link_options(-fuse-ld=mold)
endif()

# Results must not depend on how the compiler regroups floating point: no contraction of a*b+c into an FMA that the source
# does not ask for (std::fma and intrinsics still give one), no fast-math anywhere.
add_compile_options(-Wall -Wextra -Wshadow -ffp-contract=off -fno-fast-math)
if(DEEPINFER_WERROR)
  add_compile_options(-Werror)
endif()
if(DEEPINFER_SANITIZE)
  string(REPLACE "," ";" _sanitizers "${DEEPINFER_SANITIZE}")
  foreach(_s IN LISTS _sanitizers)
    add_compile_options(-fsanitize=${_s})
    add_link_options(-fsanitize=${_s})
  endforeach()
  add_compile_options(-fno-omit-frame-pointer -g1)
  if("undefined" IN_LIST _sanitizers)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
if(DEEPINFER_FUZZ)
  # Coverage feedback from the libraries too; each fuzz program adds libFuzzer's main.
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()
