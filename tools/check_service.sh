#!/bin/sh
# The service files: the unit's exposure by systemd's own measure is at most 1.0 and it parses; the
# sysusers, tmpfiles, launchd and sample files parse where their tools are here. 77 when none are.
cd "$(dirname "$0")/../systemd" || exit 1
bad=0
tried=0

if command -v systemd-analyze >/dev/null 2>&1 &&
    systemd-analyze security --help 2>/dev/null | grep -q -- --offline; then
    tried=1
    out=$(systemd-analyze security --offline=yes --threshold=10 ./conifer-server.service) || bad=1
    echo "$out" | tail -n 1
    # --threshold takes ten times the exposure
    [ $bad = 0 ] || echo "$out"
    # the program is not installed here; any other complaint counts
    complaints=$(systemd-analyze verify ./conifer-server.service 2>&1 |
        grep -v 'is not executable: No such file' | grep conifer)
    if [ -n "$complaints" ]; then
        echo "$complaints"
        bad=1
    fi
fi
if command -v systemd-sysusers >/dev/null 2>&1; then
    tried=1
    root=$(mktemp -d)
    mkdir -p "$root/etc"
    systemd-sysusers --root="$root" "$PWD/conifer.sysusers" || bad=1
    grep -q '^conifer:' "$root/etc/passwd" || { echo "sysusers made no user"; bad=1; }
    if command -v systemd-tmpfiles >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
        systemd-tmpfiles --root="$root" --create "$PWD/conifer.tmpfiles" || bad=1
        [ -d "$root/var/lib/conifer/models" ] || { echo "tmpfiles made no models folder"; bad=1; }
    fi
    rm -rf "$root"
fi
nginx=$(command -v nginx || echo /usr/sbin/nginx)
if [ -x "$nginx" ] && command -v openssl >/dev/null 2>&1; then
    tried=1
    dir=$(mktemp -d)
    openssl req -x509 -newkey rsa:2048 -nodes -keyout "$dir/key" -out "$dir/pem" -days 1 -subj /CN=x \
        2>/dev/null
    sed -e "s|/etc/ssl/certs/llm.example.org.pem|$dir/pem|" \
        -e "s|/etc/ssl/private/llm.example.org.key|$dir/key|" nginx.conf.sample >"$dir/site"
    printf 'pid %s/pid;\nerror_log %s/log;\nevents {}\nhttp { access_log off; include %s/site; }\n' \
        "$dir" "$dir" "$dir" >"$dir/conf"
    "$nginx" -t -q -c "$dir/conf" || bad=1
    rm -rf "$dir"
fi
python3 -c 'import plistlib; plistlib.load(open("org.conifer.server.plist", "rb"))' || bad=1
[ $tried = 1 ] || [ $bad = 1 ] || exit 77
exit $bad
