#!/usr/bin/env bash
# tools/check_format.sh [--fix] [<root>]: all C++ sources are formatted as .clang-format says and no
# line is over 100 columns. --fix formats in place. In a git tree: tracked files and new ones that
# git does not ignore; elsewhere: all files outside build folders and hidden ones.
#
# Versions of clang-format differ in small things, so the check holds for the one named here;
# with another only the line lengths are checked.
set -euo pipefail

version=14
columns=100

fix=
if [ "${1:-}" = --fix ]; then
  fix=1
  shift
fi
cd "${1:-$(dirname "$0")/..}"

list_sources() {
  if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$PWD" ]; then
    git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp'
  else
    find . \( -name '.?*' -o -name 'build*' \) -prune -o \
      \( -name '*.h' -o -name '*.cpp' \) -type f -print0
  fi
}
sources=()
while IFS= read -r -d '' file; do
  # A tracked file that was just removed is still listed.
  if [ -e "$file" ]; then sources+=("$file"); fi
done < <(list_sources)
if [ ${#sources[@]} = 0 ]; then exit 0; fi

clang_format=$(command -v clang-format-$version || command -v clang-format || true)
found=
if [ -n "$clang_format" ]; then
  found=$("$clang_format" --version | sed -E 's/.*version ([0-9]+).*/\1/')
fi
status=0
if [ "$found" = $version ]; then
  if [ -n "$fix" ]; then
    "$clang_format" --style=file -i "${sources[@]}"
  else
    "$clang_format" --style=file --dry-run -Werror "${sources[@]}" || status=1
  fi
else
  echo "format: not checked: sources are formatted with clang-format $version," \
    "here is ${found:-none}" >&2
fi

# Comments are not reflowed (they hold tables and drawings), so clang-format says nothing about them.
if LC_ALL=C.UTF-8 grep -nE "^.{$((columns + 1)),}" "${sources[@]}" /dev/null >&2; then
  echo "format: these lines are over $columns columns" >&2
  status=1
fi
exit $status
