# Sourced by check and quickstart: which system packages are needed, and how they get here.
# Debian and Ubuntu are installed from; elsewhere the commands that are missing are named.

BUILD_PACKAGES="gcc libc6-dev meson ninja-build pkg-config python3 python3-pip python3-venv
    ca-certificates libuv1-dev libssl-dev libjansson-dev libpcre2-dev libutf8proc-dev libyaml-dev
    libsystemd-dev libjemalloc-dev libedit-dev libcurl4-openssl-dev libminizip-dev zlib1g-dev"
TEST_PACKAGES="libcmocka-dev clang libclang-rt-dev llvm binutils nginx-light curl wrk"

say() { printf '%s\n' "$*" >&2; }

# The packages of the arguments that are not installed, one a line.
missing_packages() {
    local p
    for p in "$@"; do
        # nginx comes in flavours, and any of them will do
        if [ "$p" = nginx-light ] && command -v nginx >/dev/null 2>&1; then continue; fi
        if [ "$p" = nginx-light ] && [ -x /usr/sbin/nginx ]; then continue; fi
        case $(dpkg-query -W -f '${Status}' "$p" 2>/dev/null) in
        *" installed") ;;
        *) printf '%s\n' "$p" ;;
        esac
    done
}

# Installs what is missing of the arguments; 1 when it cannot.
need_packages() {
    local missing as_root=
    if ! command -v dpkg-query >/dev/null 2>&1; then
        local c absent=
        for c in cc meson ninja pkg-config python3; do
            command -v "$c" >/dev/null 2>&1 || absent="$absent $c"
        done
        [ -z "$absent" ] && return 0
        say "missing:$absent"
        say "This is not Debian or Ubuntu: install these, and the development files of libuv, OpenSSL,"
        say "jansson, PCRE2, utf8proc, libyaml, libcurl, minizip, and libedit if you like."
        return 1
    fi
    missing=$(missing_packages "$@" | tr '\n' ' ')
    [ -z "${missing// /}" ] && return 0
    say "system packages needed: $missing"
    if [ "$(id -u)" != 0 ]; then
        if command -v sudo >/dev/null 2>&1 && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
            as_root=sudo
        else
            say "not root: run this first, then try again:"
            say "    apt-get update && apt-get install -y --no-install-recommends $missing"
            return 1
        fi
    fi
    say "installing them with apt-get"
    $as_root apt-get update -q >&2 || say "apt-get update failed; trying with the lists that are here"
    # a package that this release does not have (libclang-rt-dev before it was split off) is left out
    local wanted= p
    for p in $missing; do
        if apt-cache show "$p" >/dev/null 2>&1; then wanted="$wanted $p"
        else say "this release has no package $p"; fi
    done
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
        $wanted >&2
}

# Sets PYTHON to a Python that has pip and venv.
find_python() {
    local p
    for p in "${PYTHON:-}" python3 /usr/bin/python3; do
        [ -n "$p" ] || continue
        if "$p" -m pip --version >/dev/null 2>&1 && "$p" -c 'import venv, ensurepip' 2>/dev/null; then
            PYTHON=$p
            export PYTHON
            return 0
        fi
    done
    say "no python3 with pip and venv was found (packages python3-pip and python3-venv)"
    return 1
}
