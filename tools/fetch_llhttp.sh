#!/bin/sh
# Puts the archive that carries llhttp into subprojects/packagecache, by way of pip (so that
# mirrors and proxies work), and checks it. Does nothing when it is there already.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cache=$root/subprojects/packagecache
file=httptools-0.9.0.tar.gz
sha=d484ebb7e3a3f3597b0f645fbd1b85633674ca808c1f5ba11c2caf7c66f5c8b6

good() { [ -f "$1" ] && printf '%s  %s\n' "$sha" "$1" | sha256sum -c --status 2>/dev/null; }

if good "$cache/$file"; then
    exit 0
fi
mkdir -p "$cache"
tmp=$(mktemp -d "$cache/.fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
echo "fetching llhttp (httptools 0.9.0 from PyPI)" >&2
"${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-binary :all: -d "$tmp" httptools==0.9.0
if ! good "$tmp/$file"; then
    echo "fetch_llhttp: $file does not have the expected SHA-256 ($sha)" >&2
    exit 1
fi
mv -f "$tmp/$file" "$cache/$file"
