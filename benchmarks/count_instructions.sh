#!/usr/bin/env bash
# Instructions that one warm op takes, plain and sharded, counted by callgrind: the difference of two
# runs of 2,000 and 4,000 calls, so that start-up does not count.
#
#   benchmarks/count_instructions.sh [op ...]
set -euo pipefail
cd "$(dirname "$0")/.."

ops=("$@")
[ ${#ops[@]} -gt 0 ] || ops=(add mm t view addmm sum layer_norm mul_ detach)
command -v valgrind > /dev/null || { echo "count_instructions: valgrind is not installed" >&2; exit 1; }

instructions() { # op times
  valgrind --tool=callgrind --callgrind-out-file=/dev/null \
    build/benchmarks/dispatch_bench count "$1" "$2" 2>&1 |
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}
per_call() { # op
  local few many
  few=$(instructions "$1" 2000)
  many=$(instructions "$1" 4000)
  echo $(((many - few) / 2000))
}

printf '| %-10s | %8s | %8s | %8s |\n' op plain sharded over
printf '|------------|----------|----------|----------|\n'
for op in "${ops[@]}"; do
  plain=$(per_call "plain:$op")
  sharded=$(per_call "$op")
  printf '| %-10s | %8d | %8d | %8d |\n' "$op" "$plain" "$sharded" $((sharded - plain))
done
