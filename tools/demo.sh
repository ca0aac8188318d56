#!/usr/bin/env bash
# The main job of a finished build: examples/gpt learns a text on one rank, then on four as
# dp=2,tp=2, and once more with a rank that is killed, and compares. Arguments go to all runs
# (--steps 50).
set -euo pipefail
cd "$(dirname "$0")/.."

tessera=build/bin/tessera
gpt=build/examples/gpt
out=build/demo
mkdir -p "$out"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # alike in all runs

echo "== a GPT on one rank"
"$tessera" launch -n 1 "$gpt" --mesh dp=1,tp=1 --steps 200 --every 50 --record "$out/one_rank.txt" "$@"
echo
echo "== the same on four processes: fully_shard over dp=2, tensor parallelism over tp=2"
"$tessera" launch -n 4 "$gpt" --mesh dp=2,tp=2 --steps 200 --compare "$out/one_rank.txt" \
  --record "$out/four_ranks.txt" --report "$out/report.html" "$@"
echo
echo "== a rank is killed on the way; the job starts again from its last checkpoint"
rm -rf "$out/checkpoints"
"$tessera" launch -n 4 --max-restarts 1 "$gpt" --mesh dp=2,tp=2 --steps 200 --compare "$out/one_rank.txt" \
  --checkpoints "$out/checkpoints" --save-every 20 --die-at 30 "$@"
echo
echo "The report, with both loss curves, communication and memory: $PWD/$out/report.html"
