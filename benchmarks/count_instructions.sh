#!/usr/bin/env bash
# Instructions of one warm op, plain and sharded (one mesh axis, no autograd), and of a training step of
# a small GPT on one rank, counted by callgrind. `count_instructions.sh op` or `step`: that one alone.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v valgrind > /dev/null || { echo "count_instructions: install valgrind" >&2; exit 1; }
dumps=$(mktemp -d)
trap 'rm -rf "$dumps"' EXIT

count() { # dispatch_bench: one dump a measured thing
  rm -f "$dumps"/*
  valgrind --tool=callgrind --callgrind-out-file="$dumps/out" \
    "build/benchmarks/$1" count > "$dumps/log" 2>&1 || { tail -5 "$dumps/log" >&2; exit 1; }
  calls=$(sed -n 's/^constexpr int kCounted = \([0-9]*\);/\1/p' "benchmarks/$1.cpp")
}

instructions() { # plain:add
  local dump
  dump=$(grep -l "^desc: Trigger: Client Request: $1\$" "$dumps"/out*)
  echo $(($(sed -n 's/^\(summary\|totals\): \([0-9]*\).*/\2/p' "$dump" | head -1) / calls))
}

if [ "${1:-op}" = op ]; then
  count dispatch_bench
  printf '| %-12s | %8s | %8s | %8s |\n' op plain sharded over
  printf '|--------------|----------|----------|----------|\n'
  for op in $(sed -n 's/^desc: Trigger: Client Request: plain:\(.*\)/\1/p' "$dumps"/out*); do
    plain=$(instructions "plain:$op")
    sharded=$(instructions "sharded:$op")
    printf '| %-12s | %8d | %8d | %8d |\n' "$op" "$plain" "$sharded" $((sharded - plain))
  done
fi
if [ "${1:-step}" = step ]; then
  count step_bench
  plain=$(instructions plain)
  printf '\n| %-12s | %12s | %10s |\n' step instructions "over plain"
  printf '|--------------|--------------|------------|\n'
  for form in plain sharded fully_shard; do
    one=$(instructions "$form")
    printf '| %-12s | %12d | %7d.%02d |\n' "$form" "$one" $((one / plain)) $((one * 100 / plain % 100))
  done
fi
