#!/usr/bin/env bash
# examples/060_serve/test.sh <tessera> <060_serve>: the service on two and four ranks, as processes and as
# threads, gives the same answers.
set -euo pipefail
tessera=$1 serve=$2
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
model=examples/060_serve/model.pt2
prompts() { printf 'That winter \n\nBefore the rain Hu\n'; }

"$tessera" shard "$model" --mesh tp=4 --plan examples/060_serve/plan.json -o "$folder/tp4" >/dev/null
"$tessera" shard "$model" --mesh tp=2 --plan examples/060_serve/plan.json -o "$folder/tp2" >/dev/null

echo "== threads"
prompts | "$serve" "$folder/tp4" >"$folder/threads"
cat "$folder/threads"
test "$(wc -l <"$folder/threads")" = 3
grep -q '^error: ' "$folder/threads"

echo "== processes"
prompts | "$tessera" launch -n 4 --stdin "$serve" "$folder/tp4" | sed 's/^\[0\] //' >"$folder/processes"
cmp "$folder/threads" "$folder/processes"

echo "== another mesh"
prompts | "$serve" "$folder/tp2" >"$folder/two"
cmp "$folder/threads" "$folder/two"

echo "== a world of another size"
! "$tessera" launch -n 3 "$serve" "$folder/tp4" 2>"$folder/err" </dev/null
grep -q 'sharded for tp=4' "$folder/err"
