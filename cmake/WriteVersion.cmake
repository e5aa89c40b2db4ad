# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=FILE -DSOURCE=DIR -DVERSION=V -DBUILD_TYPE=T -P WriteVersion.cmake: writes the header when its text changes.
set(commit "unknown")
set(dirty false)
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -c safe.directory=* -C ${SOURCE} rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed)
    set(commit ${head})
    execute_process(COMMAND ${GIT} -c safe.directory=* -C ${SOURCE} status --porcelain -uno OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      set(dirty true)
    endif()
  endif()
endif()
set(text "// SPDX-License-Identifier: Apache-2.0
#pragma once
#define DEEPINFER_VERSION \"${VERSION}\"
#define DEEPINFER_COMMIT \"${commit}\"
#define DEEPINFER_DIRTY ${dirty}
#define DEEPINFER_BUILD_TYPE \"${BUILD_TYPE}\"
")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
