// SPDX-License-Identifier: Apache-2.0
//
// The rows of download (specification, cli: download).
#include "core/option_rows.h"

namespace deepinfer {

std::vector<OptionSpec> DownloadRows() {
  using enum OptionKind;
  constexpr std::string_view kDownload = "download";
  return {
      {.name = "dir",
       .group = "Download",
       .commands = kDownload,
       .field = DI_FIELD(download.dir),
       .help = "folder for the files; without it they go to the hub cache, where --model finds them by their id",
       .kind = kDirectory},
      {.name = "include",
       .group = "Download",
       .commands = kDownload,
       .field = DI_FIELD(download.include),
       .help = "fetch only files whose path matches, such as '*.json'; may be repeated",
       .kind = kTextList,
       .value_name = "PATTERN"},
      {.name = "exclude",
       .group = "Download",
       .commands = kDownload,
       .field = DI_FIELD(download.exclude),
       .help = "leave out files whose path matches; may be repeated",
       .kind = kTextList,
       .value_name = "PATTERN"},
      {.name = "connections",
       .group = "Download",
       .commands = kDownload,
       .field = DI_FIELD(download.connections),
       .help = "ranges that are fetched at the same time",
       .kind = kInt,
       .min = 1,
       .max = 64},
      {.name = "max-retries",
       .group = "Download",
       .commands = kDownload,
       .field = DI_FIELD(download.max_retries),
       .help = "how often a range is asked for again without having got a byte of it; the waits double up to 30 s",
       .kind = kInt,
       .min = 0,
       .max = 1000},
  };
}

}  // namespace deepinfer
