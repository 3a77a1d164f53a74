#!/usr/bin/env bash
# Shows that ./quickstart works on a bare Debian 12: makes a minimal bookworm root, clones this
# repository's HEAD into it, asks a question, then asks again without network and times the answer.
#
# usage: tools/bare_chroot.sh [FOLDER]     needs root and mmdebstrap; FOLDER (made if absent) is kept
#
# PIP_CERT, PIP_INDEX_URL and the proxies of the environment are handed on, so that it works where
# packages come through a mirror.
set -eu
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "bare_chroot: needs root" >&2; exit 77; }
command -v mmdebstrap >/dev/null || { echo "bare_chroot: needs mmdebstrap" >&2; exit 77; }

ROOT=${1:-}
KEEP=1
[ -n "$ROOT" ] || { ROOT=$(mktemp -d /tmp/conifer-chroot.XXXXXX)/root KEEP=0; }
QUESTION="Why is the sky blue?"

mounted=
cleanup() {
    local m
    for m in $mounted; do umount "$m" 2>/dev/null || umount -l "$m" || true; done
    # never remove what something is still mounted in
    if [ $KEEP = 0 ] && ! grep -q " $ROOT/" /proc/mounts; then rm -rf "${ROOT%/root}"; fi
}
trap cleanup EXIT

if [ ! -x "$ROOT/usr/bin/apt-get" ]; then
    echo "== mmdebstrap"
    mmdebstrap --quiet --variant=minbase bookworm "$ROOT"
fi
[ -f /etc/resolv.conf ] && cp -L /etc/resolv.conf "$ROOT/etc/resolv.conf"
mkdir -p "$ROOT/root"
rm -rf "$ROOT/root/conifer"
git clone -q . "$ROOT/root/conifer"
mount -t proc proc "$ROOT/proc" && mounted="$ROOT/proc"
for d in null zero full random urandom tty; do
    [ -e "$ROOT/dev/$d" ] || { touch "$ROOT/dev/$d"; mount --bind "/dev/$d" "$ROOT/dev/$d"; }
    mountpoint -q "$ROOT/dev/$d" && mounted="$ROOT/dev/$d $mounted"
done

settings=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root)
for v in PIP_INDEX_URL PIP_DEFAULT_TIMEOUT http_proxy https_proxy no_proxy; do
    [ -z "${!v:-}" ] || settings+=("$v=${!v}")
done
if [ -n "${PIP_CERT:-}" ]; then
    cp -L "$PIP_CERT" "$ROOT/root/ca.crt"
    settings+=(PIP_CERT=/root/ca.crt)
fi
inside() { env -i "${settings[@]}" "$@"; }

echo "== first run"
SECONDS=0
inside chroot "$ROOT" bash -c "cd /root/conifer && ./quickstart --ask '$QUESTION'"
echo "== first run took $SECONDS s"

echo "== second run, without network"
start=$(date +%s%N)
# the time until the first byte of the answer
inside unshare --net chroot "$ROOT" bash -c "cd /root/conifer && ./quickstart --ask '$QUESTION'" \
    2>/dev/null | { IFS= read -r -N 1 _ || exit 1; echo $(($(date +%s%N) - start)) >"$ROOT/root/first"
                    cat >/dev/null; }
ms=$(($(cat "$ROOT/root/first") / 1000000))
echo "== second run: first byte of the answer after $ms ms"
[ "$ms" -lt 2000 ]
