#!/bin/sh
# Each header must compile alone, with every compiler at hand. Prints the ones that do not.
cd "$(dirname "$0")/.." || exit 1
bad=0
count=0
for cc in gcc clang; do
    command -v $cc >/dev/null 2>&1 || continue
    for h in $(git ls-files -co --exclude-standard '*.h' 2>/dev/null ||
               find . -name '*.h' -not -path './build*' -not -path './subprojects/*'); do
        case $h in subprojects/* | tests/*) continue ;; esac
        [ -f "$h" ] || continue
        isa=
        case $h in # what the folder's own meson.build compiles these with, on their processor alone
        */avx*/*) [ "$(uname -m)" = x86_64 ] || continue ;;
        */neon/*) case $(uname -m) in aarch64 | arm64) ;; *) continue ;; esac ;;
        esac
        case $(uname -m):$h in
        aarch64:kernels/cpu/*simd.h | arm64:kernels/cpu/*simd.h | *:*/neon/*)
            isa="-march=armv8.2-a+dotprod" ;;
        *:*/avx512/*) isa="-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni" ;;
        *:*/avx2/* | *:kernels/cpu/*simd.h) isa="-mavx2 -mfma -mf16c" ;;
        esac
        count=$((count + 1))
        if ! $cc -std=gnu11 -D_GNU_SOURCE -I. -Isubprojects/httptools-0.9.0/vendor/llhttp/include \
            -Wall -Wextra -Werror -Wno-unused-parameter -Wno-unused-function \
            -Wno-missing-field-initializers $isa -fsyntax-only -x c "$h"; then
            echo "$h does not compile alone with $cc"
            bad=1
        fi
    done
done
echo "$count compilations"
exit $bad
