#!/usr/bin/env bash
# tools/configure.sh <preset>: configures the preset's build folder for $TORCH (default: .venv's
# torch) if it is not yet. Ninja itself configures again when a CMake file changes.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
folder=build-$preset
[ "$preset" = dev ] && folder=build

if [ "$preset" = pure ]; then
  torch=none
elif [ -n "${TORCH:-}" ]; then
  torch=$(cd "$TORCH" && pwd)
else
  torch=$(echo "$PWD"/.venv/lib/python3*/site-packages/torch)
fi

stamp=$folder/.configured-for
if [ -e "$folder/build.ninja" ] && [ ! CMakePresets.json -nt "$stamp" ] &&
  [ "$(cat "$stamp" 2>/dev/null)" = "$torch" ]; then
  exit 0
fi
werror=OFF # another compiler warns of other things, and then nothing would build
[ -n "${CI:-}" ] && werror=ON
cmake --preset "$preset" "-DTESSERA_TORCH_DIR=$torch" "-DTESSERA_WERROR=$werror"
echo "$torch" >"$stamp"
