#!/usr/bin/env bash
# Runs the main job of a finished build: examples/demo, or the first numbered example. The first
# comment line of its source says what it shows.
set -euo pipefail
cd "$(dirname "$0")/.."

for program in build/examples/demo build/examples/[0-9]*; do
  if [ -x "$program" ]; then
    name=$(basename "$program")
    source=examples/$name.cpp
    [ -e "$source" ] || source=examples/$name/main.cpp
    shows=$(grep -m1 '^// ' "$source" || true)
    echo "== $name: ${shows#// }"
    exec "$program"
  fi
done
echo "demo: no example is built yet (examples/)" >&2
exit 1
