#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The speed of the server with a null model: docs/internals/server-speed.md. Needs the build directory (deepinfer,
# tests/e2e/scripted_server, bench/serve_overhead) and two cores that nothing else uses.
#
#   bench/serve.sh [BUILD_DIR] [OUT.jsonl]     prints a table; OUT gets one record a run
#
# SERVER_CPU and CLIENT_CPU name the cores (0 and 1); SECONDS_EACH how long a run takes (15); ONLY="rate big" some of the
# parts (rate full big overhead idle many leave).
set -eu
build=${1:-build}
out=${2:-}
server_cpu=${SERVER_CPU:-0}
client_cpu=${CLIENT_CPU:-1}
seconds=${SECONDS_EACH:-15}
only=${ONLY:-rate full big overhead idle many leave}
work=$(mktemp -d)
server=
fails=0
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

wants() { case " $only " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

# start CPUS ARGUMENTS...: a server on these cores; its port in $port.
start() {
  cpus=$1
  shift
  mkfifo "$work/in"
  taskset -c "$cpus" "$build/tests/e2e/scripted_server" "$@" <"$work/in" >"$work/port" &
  server=$!
  exec 3>"$work/in"
  while ! [ -s "$work/port" ]; do sleep 0.1; done
  port=$(cat "$work/port")
}
# Its standard input ends, and so does it.
stop() {
  [ -n "$server" ] || return 0
  exec 3>&-
  wait "$server" || true
  server=
  rm -f "$work/in" "$work/port"
}
# load CPUS ARGUMENTS...: a run of the client; its record in $work/record.
load() {
  cpus=$1
  shift
  taskset -c "$cpus" "$build/deepinfer" bench serve --url "http://127.0.0.1:$port" --with-tool --input-tokens 64 --output-tokens "${tokens:-8192}" --quiet \
    --json "$@" >"$work/record" || true
  [ -z "$out" ] || cat "$work/record" >>"$out"
}
# The first number with that key.
get() { grep -o "\"$1\":-\{0,1\}[0-9][0-9.e+-]*" "$work/record" | head -1 | cut -d: -f2; }
# row NAME VALUE OP TARGET
row() {
  state=$(awk -v v="$2" -v op="$3" -v t="$4" 'BEGIN { if (op == "") print "-"; else print ((op == ">=" ? v + 0 >= t : op == "<" ? v + 0 < t : v + 0 == t) && v != "") ? "ok" : "NOT MET" }')
  [ "$state" != "NOT MET" ] || fails=$((fails + 1))
  printf '%-62s %14s   %-12s %s\n' "$1" "$(awk -v v="$2" 'BEGIN { if (v == "") print "none"; else if (v == int(v)) printf "%d", v; else printf "%.3f", v }')" "$3 $4" "$state"
}
# What every run must show.
whole() {
  row "$1: failed requests" "$(get failed)" == 0
  row "$1: leaked" "$(get leaked)" == 0
}

printf '%-62s %14s   %-12s %s\n' figure value target state

if wants rate; then
  # 256 streams, 200 steps a second: 51,200 tokens a second and more, as some steps give several.
  start "$server_cpu" --steps-per-s 200 --answer-tokens 1200
  for api in chat messages responses; do
    load "$client_cpu" --api "$api" --concurrency 256 --duration-s "$seconds" --stream-rate 200
    name="one core, $api, 256 streams at 200 steps/s"
    row "$name: tokens/s" "$(get output_throughput)" ">=" 50000
    row "$name: p99 jitter, ms" "$(get p99_jitter_ms)" "<" 20
    row "$name: server's core, %" "$(awk -v c="$(get cpu_s)" -v d="$(get duration)" 'BEGIN { print 100 * c / d }')" "" ""
    whole "$name"
  done
  stop
fi
if wants full; then
  start "$server_cpu" --steps-per-s 0 --answer-tokens 1200
  load "$client_cpu" --concurrency 256 --duration-s "$seconds"
  row "one core, chat, 256 streams at full speed: tokens/s" "$(get output_throughput)" ">=" 50000
  whole "one core, chat, full speed"
  stop
fi
if wants big; then
  start "$server_cpu,$client_cpu" --steps-per-s 100 --answer-tokens 1200
  load "$server_cpu,$client_cpu" --concurrency 64 --duration-s "$seconds" --stream-rate 100
  row "64 streams at 100 steps/s, two cores: p99 gap, ms" "$(get p99_itl_ms)" "" ""
  for bodies in 1 4; do
    load "$server_cpu,$client_cpu" --concurrency 64 --duration-s "$seconds" --stream-rate 100 --big-bodies $bodies --big-body-mib 64
    row "beside $bodies clients with 64 MiB bodies: p99 gap, ms" "$(get p99_itl_ms)" "<" 50
    row "beside $bodies clients with 64 MiB bodies: bodies counted" "$(get sent)" ">=" 1
    whole "beside $bodies clients with 64 MiB bodies"
  done
  stop
fi
if wants overhead; then
  for words in 4 64 2048; do
    "$build/bench/serve_overhead" --pairs 100 --input-tokens $words >"$work/both"
    [ -z "$out" ] || cat "$work/both" >>"$out"
    for backend in null demo; do
      # The demo model's context does not hold the longest prompt.
      grep -q "\"backend\":\"$backend\"" "$work/both" || continue
      grep "\"backend\":\"$backend\"" "$work/both" | sed 's/.*"added_ms"/"added_ms"/' >"$work/record"
      row "added to the first token, $backend, $words prompt words: p50, ms" "$(get p50)" "<" 1
    done
  done
fi
if wants idle; then
  start "$server_cpu,$client_cpu" --steps-per-s 0
  count=$(($(ulimit -Hn) - 500))
  [ "$count" -lt 10000 ] || count=10000
  load "$server_cpu,$client_cpu" --concurrency 16 --num-prompts 100 --idle-connections "$count"
  row "idle connections that stay open" "$(get open_at_end)" == "$count"
  row "memory of an idle connection, KB" "$(awk -v b="$(get bytes_each)" 'BEGIN { print b / 1000 }')" "<" 64
  row "after one request each, KB" "$(awk -v b="$(get bytes_each_after_request)" 'BEGIN { print b / 1000 }')" "<" 64
  whole "beside $count idle connections"
  stop
fi
if wants many; then
  start "$server_cpu" --steps-per-s 40 --answer-tokens 600
  load "$client_cpu" --concurrency 1000 --num-prompts 3000 --stream-rate 40
  row "1,000 streams at 40 steps/s: complete" "$(get completed)" == 3000
  row "1,000 streams at 40 steps/s: tokens/s" "$(get output_throughput)" "" ""
  row "1,000 streams at 40 steps/s: p99 gap, ms" "$(get p99_itl_ms)" "" ""
  row "1,000 streams at 40 steps/s: lost" "$(get lost)" == 0
  whole "1,000 streams"
  stop
fi
if wants leave; then
  start "$server_cpu" --steps-per-s 40 --answer-tokens 600
  # The answer has about 600 tokens: most of those that are to be left are, somewhere in it.
  tokens=600 load "$client_cpu" --concurrency 1000 --num-prompts 4000 --disconnect-rate 0.5
  row "1,000 streams, half of them left: lost of the others" "$(get lost)" == 0
  whole "1,000 streams, half of them left"
  stop
fi
if [ "$fails" -gt 0 ]; then
  echo "$fails targets are not met"
  exit 1
fi
