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
if ls build/python/tessera/_C.* >/dev/null 2>&1 && [ -x .venv/bin/python ]; then
  found=1
  echo "== compare_torch"
  PYTHONPATH=build/python OMP_NUM_THREADS=1 .venv/bin/python benchmarks/compare_torch.py
  echo "== compare_program"
  PYTHONPATH=build/python OMP_NUM_THREADS=1 .venv/bin/python benchmarks/compare_program.py --large
  for processes in 2 4; do
    echo "== compare_checkpoint"
    PYTHONPATH=build/python .venv/bin/python benchmarks/compare_checkpoint.py -n $processes
  done
fi
[ $found = 1 ] || echo "bench: there is no benchmark yet (benchmarks/*_bench.cpp)"
