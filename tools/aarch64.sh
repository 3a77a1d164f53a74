#!/usr/bin/env bash
# What a build for 64-bit ARM on another processor needs, in a folder of its own:
#     tools/aarch64.sh FOLDER
# unpacks Debian's arm64 libraries under FOLDER/sysroot and writes FOLDER/cross.ini for
#     meson setup --cross-file FOLDER/cross.ini BUILD
# whose tests run under qemu-user; QEMU_CPU chooses the processor (max; neoverse-n1 has dot products
# but no i8mm, cortex-a72 neither). The system's packages stay as they are but for the compiler and the
# emulator. Exit status 77: they cannot be had here.
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/deps.sh

[ $# = 1 ] || { say "usage: tools/aarch64.sh FOLDER"; exit 2; }
mkdir -p "$1" && FOLDER=$(cd "$1" && pwd) || exit 1
ROOT=$FOLDER/sysroot APT=$FOLDER/apt

command -v apt-get >/dev/null 2>&1 || { say "arm64 libraries come with apt-get only"; exit 77; }
need_packages gcc-aarch64-linux-gnu qemu-user pkg-config || exit 77

# Libraries' development files, and a C library; whatever these need apt-get finds.
wanted="libc6-dev libgcc-12-dev libcmocka-dev"
for p in $BUILD_PACKAGES; do
    case $p in libc6-dev) ;; *-dev) wanted="$wanted $p" ;; esac
done

# apt-get with lists, state and archives of its own, as if this were an arm64 machine with nothing
# installed.
fetch_packages() {
    mkdir -p "$APT/lists/partial" "$APT/cache/archives/partial" && : >"$APT/status" || return 1
    cat >"$APT/apt.conf" <<EOF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
Dir::State "$APT";
Dir::State::lists "$APT/lists";
Dir::State::status "$APT/status";
Dir::Cache "$APT/cache";
EOF
    export APT_CONFIG=$APT/apt.conf
    apt-get update -q >&2 || say "apt-get update failed for some sources"
    # shellcheck disable=SC2086
    apt-get install -q -y --no-install-recommends --download-only $wanted >&2
}

unpack() {
    local deb link
    rm -rf "$ROOT" && mkdir -p "$ROOT" || return 1
    for deb in "$APT"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$ROOT" --keep-directory-symlink || return 1
    done
    # links from the root of a file system lead out of this one
    find "$ROOT" -type l -lname '/*' | while read -r link; do
        ln -sfn "$ROOT$(readlink "$link")" "$link"
    done
}

stamp=$(printf '%s' "$wanted" | sha256sum)
if [ "$(cat "$FOLDER/packages" 2>/dev/null)" != "$stamp" ]; then
    rm -f "$FOLDER/packages"
    fetch_packages || { say "the arm64 packages cannot be fetched"; exit 77; }
    unpack || exit 1
    rm -rf "$APT"
    printf '%s\n' "$stamp" >"$FOLDER/packages"
fi

launcher=
command -v ccache >/dev/null 2>&1 && launcher="'ccache', "
cat >"$FOLDER/cross.ini" <<EOF
[constants]
root = '$ROOT'

[binaries]
c = [$launcher'aarch64-linux-gnu-gcc', '--sysroot=' + root]
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = ['qemu-aarch64', '-L', root]

[properties]
sys_root = root
pkg_config_libdir = root / 'usr/lib/aarch64-linux-gnu/pkgconfig:' + root / 'usr/share/pkgconfig'

[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'armv8-a'
endian = 'little'
EOF
