#!/usr/bin/env bash
# tools/format.sh            gives all C sources the form that .clang-format describes
# tools/format.sh --check    changes nothing; says where the form differs, and exits with 1
#
# Another version of clang-format gives another form, so it must be the one that
# tests/requirements.txt names. ./check installs it into build-venv.
set -eu
cd "$(dirname "$0")/.."
format=build-venv/bin/clang-format
if [ ! -x $format ]; then
    want=$(grep '^clang-format' tests/requirements.txt)
    echo "tools/format.sh: $format is not there; ./check installs it, or:" >&2
    echo "    python3 -m venv build-venv && build-venv/bin/pip install $want" >&2
    exit 1
fi
case ${1-} in
--check) mode=(--dry-run -Werror) ;;
"") mode=(-i) ;;
*) echo "tools/format.sh: unknown option $1" >&2; exit 2 ;;
esac
{
    git ls-files -co --exclude-standard '*.c' '*.h' 2>/dev/null ||
        find . -name '*.[ch]' -not -path './build*' -not -path './subprojects/*'
} | xargs -n 50 -P 2 $format --style=file "${mode[@]}"
