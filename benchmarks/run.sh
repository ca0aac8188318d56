#!/usr/bin/env bash
# Runs every benchmark that is built.
set -euo pipefail
cd "$(dirname "$0")/.."

found=0
for program in build/benchmarks/*_bench; do
  [ -x "$program" ] || continue
  found=1
  echo "== $(basename "$program")"
  "$program"
done
[ $found = 1 ] || echo "bench: there is no benchmark yet (benchmarks/*_bench.cpp)"
