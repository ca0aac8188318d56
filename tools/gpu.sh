#!/usr/bin/env bash
# tools/gpu.sh: builds for the torch in $TORCH (a CUDA one, 2.11 to 2.13), runs the tests that need a
# GPU, and prints the table of docs/gpu.md. Needs no network: what is missing is left out, with a line
# that says so. SECTIONS="build tests python bench" by default; JOBS for the build.
set -euo pipefail
cd "$(dirname "$0")/.."

torch=${TORCH:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')}
python=$(cd "$torch/../../../.." && pwd)/bin/python3
sections=" ${SECTIONS:-build tests python bench} "
jobs=${JOBS:-$(nproc)}
failed=0

wants() { [[ $sections == *" $1 "* ]]; }
has_target() { ninja -C build -t query "$1" >/dev/null 2>&1; }

if wants build; then
  TORCH=$torch tools/configure.sh dev
  targets="tessera"
  for target in gpu_bench tessera_python test_dtensor test_threads test_transport test_fsdp \
    test_interp test_parallel test_rules_proof; do
    if has_target "$target"; then
      targets="$targets $target"
    else
      echo "gpu: without $target: a header or package that it needs is not installed"
    fi
  done
  # shellcheck disable=SC2086
  cmake --build build -j "$jobs" --target $targets
fi
if wants tests; then
  ctest --test-dir build -L gpu -j 4 --output-on-failure || failed=1
fi
if wants python; then
  PYTHONPATH=build/python "$python" tests/python/plain/run.py cuda_test.py || failed=1
fi
if wants bench; then
  PYTHONPATH=build/python "$python" benchmarks/compare_gpu.py || failed=1
fi
exit $failed
