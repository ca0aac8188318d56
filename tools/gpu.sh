#!/usr/bin/env bash
# tools/gpu.sh [build] [test] [python] [bench]: builds for the torch in $TORCH (a CUDA one, 2.11 to
# 2.13), runs the tests that need a GPU, then all tests of the Python package, and prints the table of
# docs/gpu.md; all four without arguments. Needs no network: what is missing is left out, with a line
# that says so.
#
# The parts are independent: one that fails does not stop the next, and the exit code is 1 in the end.
# Each prints a few lines when it is done; its whole output is a file of the folder $RESULTS.
#
#   TORCH            directory of the installed torch; by default that of python3
#   BUILD            build folder (build-gpu). A new one is configured for TEST_FILES; an existing one,
#                    such as build, is used as it was configured
#   TEST_FILES       the C++ tests to build, a regex of their names (cuda|nccl|offload: those with the
#                    label `gpu`). Empty: all, and examples and all benchmarks too
#   RESULTS          folder for logs and tables ($BUILD/results)
#   TESSERA_HEADERS  folder with headers that the system lacks: CLI/CLI.hpp, nlohmann/json.hpp
#   JOBS             parallel jobs of the build
#   PYTHON_LIMIT     seconds for all tests of the Python package (540)
#   WERROR           ON: warnings of a new build folder are errors (OFF)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

torch=${TORCH:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')}
torch=$(cd "$torch" && pwd) || exit 1
python=$(cd "$torch/../../../.." && pwd)/bin/python3
[ -x "$python" ] || python=$(command -v python3)
build=${BUILD:-build-gpu}
results=${RESULTS:-$build/results}
test_files=${TEST_FILES-cuda|nccl|offload}
jobs=${JOBS:-$(nproc)}
python_limit=${PYTHON_LIMIT:-540}
parts=" ${*:-build test python bench} "
failed=0

wants() { [[ $parts == *" $1 "* ]]; }
say() { echo "gpu [${SECONDS} s]: $*"; }
fail() {
  failed=1
  say "FAILED: $*"
}
has_target() { ninja -C "$build" -t query "$1" >/dev/null 2>&1; }

for part in $parts; do
  case $part in
    build | test | python | bench) ;;
    *)
      echo "gpu: there is no part '$part'; build, test, python, bench" >&2
      exit 2
      ;;
  esac
done
mkdir -p "$results" && results=$(cd "$results" && pwd) || exit 1

# The test programs that the folder is configured for, as ninja names them.
test_programs() {
  ninja -C "$build" -t targets all | sed -n 's|^\(tests/test_[^:/]*\): .*_EXECUTABLE_LINKER.*|\1|p' |
    sort -u | tr '\n' ' '
}

build_all() {
  if [ ! -e "$build/build.ninja" ]; then
    cmake --preset dev -B "$build" "-DTESSERA_TORCH_DIR=$torch" "-DTESSERA_WERROR=${WERROR:-OFF}" \
      "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG" \
      "-DTESSERA_TEST_FILES=$test_files" >"$results/configure.log" 2>&1 || {
      tail -15 "$results/configure.log"
      fail "cmake; see $results/configure.log"
      return
    }
    grep -E "^-- (torch |without )|skipped" "$results/configure.log"
  fi
  local targets target
  targets=$(test_programs 2>/dev/null)
  for target in gpu_bench tessera_cli tessera_python; do
    if has_target "$target"; then
      targets="$targets $target"
    else
      say "without $target: a header or package that it needs is not installed"
    fi
  done
  [ -n "$test_files" ] || targets="$targets all benchmarks"
  # shellcheck disable=SC2086
  if ninja -C "$build" -j "$jobs" -k 0 tessera $targets >"$results/build.log" 2>&1; then
    say "build: done, $(grep -c "warning: " "$results/build.log") warnings"
  else
    grep -E "error|FAILED:|undefined reference" "$results/build.log" | cut -c1-240 | head -25
    fail "build; see $results/build.log"
  fi
}

# The tests of C++ and those of Python at the same time: neither needs much of the GPU.
test_all() {
  local python_tests=0
  if [ -e "$build/python/tessera" ]; then
    PYTHONUNBUFFERED=1 PYTHONPATH=$build/python timeout 300 "$python" \
      tests/python/plain/run.py cuda_test.py cuda_streams_test.py >"$results/python.log" 2>&1 &
    python_tests=$!
  else
    say "without the Python tests: $build/python was not built"
  fi
  if ctest --test-dir "$build" -L gpu -j 4 --timeout 240 --no-tests=error --output-on-failure \
    >"$results/ctest.log" 2>&1; then
    grep -E "tests passed|\(Skipped\)" "$results/ctest.log"
  else
    grep -E "Failure$|what\(\)|\*\*\*|tests passed|^[0-9]+: +(Which|Value of|  Actual)" \
      "$results/ctest.log" | cut -c1-200 | head -40
    fail "C++ tests; see $results/ctest.log"
  fi
  say "C++ tests: done"
  [ "$python_tests" = 0 ] && return
  if ! wait "$python_tests"; then
    grep -E "^FAILED|Error|^cuda_" "$results/python.log" | cut -c1-200 | head -40
    fail "Python tests; see $results/python.log"
  else
    grep -E "^cuda_" "$results/python.log"
  fi
  say "Python tests: done"
}

# All tests but those of test_all, in as many processes as there are jobs. pytest need not be installed.
python_all() {
  if [ ! -e "$build/python/tessera" ]; then
    say "without the Python tests: $build/python was not built"
    return
  fi
  rm -rf "$results/python"
  # shellcheck disable=SC2046  # names of files
  OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 PYTHONPATH=$(cd "$build/python" && pwd) timeout -k 60 "$python_limit" \
    "$python" tests/python/plain/run.py --jobs "$jobs" --logs "$results/python" \
    $(find tests/python -maxdepth 1 -name '*_test.py' -not -name 'cuda_*' -printf '%f ') >"$results/python_all.log" 2>&1
  local code=$?
  grep -E "skipped: |^skipped |not run|^FAILED|^total: " "$results/python_all.log" | cut -c1-200
  [ $code = 0 ] || fail "Python tests, exit code $code; see $results/python_all.log and $results/python"
  say "Python tests: done"
}

bench_all() {
  if PYTHONUNBUFFERED=1 PYTHONPATH=$build/python timeout 420 "$python" \
    benchmarks/compare_gpu.py --build "$build" 2>"$results/bench.err" | tee "$results/bench.txt"; then
    say "benchmark: done"
  else
    tail -5 "$results/bench.err"
    fail "benchmark; see $results/bench.err"
  fi
}

if wants build; then build_all; fi
if wants test; then test_all; fi
if wants python; then python_all; fi
if wants bench; then bench_all; fi
exit $failed
