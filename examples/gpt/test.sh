#!/usr/bin/env bash
# examples/gpt/test.sh <tessera> <gpt>: a tiny run of the example, on one rank and on several.
set -euo pipefail
tessera=$1 gpt=$2
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

tiny="--layers 2 --width 32 --heads 4 --context 16 --batch 8"
tiny="$tiny --steps 8 --warm-up 2 --every 4 --sample 8"
# shellcheck disable=SC2086  # options, one a word
train() { "$tessera" launch -n "$1" "$gpt" --mesh "$2" $tiny "${@:3}"; }

echo "== the text is what the script writes"
examples/gpt/write_text.py | cmp - examples/gpt/text.txt

echo "== one rank"
train 1 dp=1,tp=1 --record "$folder/one"
test "$(grep -c '^loss' "$folder/one")" = 8

for mesh in dp=2,tp=2 dp=1,tp=2 dp=4,tp=1; do
  ranks=4
  [ $mesh = dp=1,tp=2 ] && ranks=2
  echo "== the same losses on $mesh"
  train $ranks $mesh --compare "$folder/one" --report "$folder/report.html"
done
grep -q '<polyline' "$folder/report.html"
grep -q 'dp reduce_scatter' "$folder/report.html"

echo "== a run whose rank dies goes on from its last checkpoint, with the same losses"
"$tessera" launch -n 2 --max-restarts 1 "$gpt" --mesh dp=2,tp=1 $tiny --compare "$folder/one" \
  --checkpoints "$folder/same" --save-every 2 --die-at 5 | tee "$folder/restarted"
grep -q 'going on from the checkpoint of step 4 on dp=2' "$folder/restarted"
test "$(ls "$folder/same")" = "$(printf 'step_6\nstep_8')"

echo "== also on fewer ranks"
"$tessera" launch -n 2 --max-restarts 2 --min-ranks 1 "$gpt" --mesh 'dp=*,tp=1' $tiny \
  --compare "$folder/one" --checkpoints "$folder/fewer" --save-every 2 --die-at 5 |
  tee "$folder/restarted"
grep -q 'going on from the checkpoint of step 4 on dp=1' "$folder/restarted"

echo "== other losses are seen"
if train 2 dp=2,tp=1 --seed 8 --compare "$folder/one"; then
  echo "test: another seed should give other losses" >&2
  exit 1
fi
