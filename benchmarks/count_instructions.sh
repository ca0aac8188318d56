#!/usr/bin/env bash
# Instructions of one warm op, plain and sharded (one mesh axis, no autograd), counted by callgrind.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v valgrind > /dev/null || { echo "count_instructions: install valgrind" >&2; exit 1; }
calls=$(sed -n 's/^constexpr int kCounted = \([0-9]*\);/\1/p' benchmarks/dispatch_bench.cpp)
dumps=$(mktemp -d)
trap 'rm -rf "$dumps"' EXIT
valgrind --tool=callgrind --callgrind-out-file="$dumps/out" \
  build/benchmarks/dispatch_bench count > "$dumps/log" 2>&1 || { tail -5 "$dumps/log" >&2; exit 1; }

instructions() { # plain:add
  local dump
  dump=$(grep -l "^desc: Trigger: Client Request: $1\$" "$dumps"/out*)
  echo $(($(sed -n 's/^\(summary\|totals\): \([0-9]*\).*/\2/p' "$dump" | head -1) / calls))
}

printf '| %-12s | %8s | %8s | %8s |\n' op plain sharded over
printf '|--------------|----------|----------|----------|\n'
for op in $(sed -n 's/^desc: Trigger: Client Request: plain:\(.*\)/\1/p' "$dumps"/out*); do
  plain=$(instructions "plain:$op")
  sharded=$(instructions "sharded:$op")
  printf '| %-12s | %8d | %8d | %8d |\n' "$op" "$plain" "$sharded" $((sharded - plain))
done
