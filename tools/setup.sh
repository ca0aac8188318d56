#!/usr/bin/env bash
# Brings a machine to where `make build` works. Idempotent: what is there is not installed again,
# and a run that finds everything takes a fraction of a second.
#
#   1 system packages, by apt when we may (root, or sudo without a password); otherwise it prints
#     the one line to run and stops if a tool is really missing
#   2 .venv with torch, numpy and what the Python tests import, by pip; skipped when
#     TORCH=<dir of an installed torch> is set, or TORCH=none for what needs no torch
#   3 with DOCS=1 what `make docs` needs: Doxygen, and .venv-docs with Sphinx in pinned versions
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0
venv=.venv
packages="torch==$torch_version numpy pytest expecttest mypy"
stamp=$venv/.tessera-${packages//[ =]/-}

# Each line: a package, and the file or command that shows that it is there (from any source).
needs() {
  cat <<'END'
g++ g++
make make
cmake cmake
ninja-build ninja
ccache ccache
clang-format clang-format
python3 python3
iproute2 ip
libgtest-dev gtest/gtest.h
libbenchmark-dev benchmark/benchmark.h
nlohmann-json3-dev nlohmann/json.hpp
libcli11-dev CLI/CLI.hpp
END
  if [ "${DOCS:-}" = 1 ]; then echo "doxygen doxygen"; fi
}

# ccache only saves time, clang-format only checks, tests of several hosts are skipped without
# iproute2, without python3-dev there is no Python package: a machine without them can still build.
optional=" ccache clang-format iproute2 python3-dev "

present() { # a command, or a header in the usual places
  case $1 in
    *.h | *.hpp) [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ] ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

missing_packages() {
  needs | while read -r package sign; do
    present "$sign" || echo "$package"
  done
  if [ -z "${TORCH:-}" ] && [ ! -e "$stamp" ] && ! has_venv_module; then
    echo python3-venv
  fi
  # The Python package needs the headers of the interpreter that .venv is made with.
  if [ -z "${TORCH:-}" ] && [ ! -e "$stamp" ] && ! has_python_header; then
    echo python3-dev
  fi
}

has_venv_module() { python3 -c 'import ensurepip, venv' 2>/dev/null; }
has_python_header() {
  python3 -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null
}

install_packages() {
  local as_root=()
  local line="apt-get install -y --no-install-recommends $*"
  if ! command -v apt-get >/dev/null; then
    echo "setup: missing: $* (Debian's names; this machine has no apt-get)" >&2
    return 1
  fi
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
      echo "setup: missing system packages; run this and try again:" >&2
      echo "  sudo apt-get update && sudo $line" >&2
      return 1
    fi
    as_root=(sudo -n)
  fi
  echo "setup: $line"
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive $line
}

# Stops only for what a build cannot do without.
require() {
  local package lacking=()
  for package in $(missing_packages); do
    case $optional in
      *" $package "*) echo "setup: going on without $package" >&2 ;;
      *) lacking+=("$package") ;;
    esac
  done
  if [ ${#lacking[@]} != 0 ]; then
    echo "setup: cannot go on without: ${lacking[*]}" >&2
    exit 1
  fi
}

install_torch() {
  if [ ! -x $venv/bin/python ]; then
    echo "setup: python3 -m venv $venv"
    python3 -m venv $venv
  fi
  if ! $venv/bin/python -c "
from importlib.metadata import version
import sys
for package in '$packages'.split():
    name, _, wanted = package.partition('==')
    if wanted and version(name).split('+')[0] != wanted:
        sys.exit(1)
    version(name)" 2>/dev/null; then
    echo "setup: pip install $packages"
    # shellcheck disable=SC2086  # one word a package
    $venv/bin/python -m pip install --disable-pip-version-check --quiet $packages
  fi
  touch "$stamp"
}

# .venv-docs is of the Python that torch belongs to: the package is imported for its docstrings.
install_docs() {
  local wanted=docs/site/requirements.txt there=.venv-docs/requirements.txt
  if cmp -s $wanted $there; then return; fi
  echo "setup: pip install -r $wanted (.venv-docs)"
  "${PYTHON:-$venv/bin/python}" -m venv .venv-docs
  .venv-docs/bin/python -m pip install --disable-pip-version-check --quiet -r $wanted
  cp $wanted $there
}

missing=$(missing_packages)
if [ -n "$missing" ]; then
  # shellcheck disable=SC2086  # one word a package
  install_packages $missing || true
  require
fi

if [ "${TORCH:-}" = none ]; then
  exit 0
elif [ -n "${TORCH:-}" ]; then
  if [ ! -e "$TORCH/lib/libtorch_cpu.so" ]; then
    echo "setup: TORCH=$TORCH holds no lib/libtorch_cpu.so; give the directory of an installed" \
      "torch, like .../site-packages/torch" >&2
    exit 1
  fi
elif [ ! -e "$stamp" ]; then
  install_torch
fi
if [ "${DOCS:-}" = 1 ]; then install_docs; fi
