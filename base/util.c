/* UTF-8 (RFC 3629), SipHash, random bytes, hex, numbers from text, clocks. Pure functions,
 * except for the kernel's random generator and the clocks; any thread. */
#include "base/base.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/random.h>
#endif

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

enum utf8_state { UTF8_GOOD, UTF8_BAD, UTF8_CUT };

/* Reads one sequence at s (n > 0). Returns its length when good; else the length of the part that
 * could begin a sequence (1 for a byte that begins none). CUT: more bytes could complete it. */
static size_t utf8_step(const uint8_t *s, size_t n, uint32_t *cp, enum utf8_state *state)
{
    uint8_t b = s[0], lo = 0x80, hi = 0xbf;
    size_t need;
    uint32_t v;

    *state = UTF8_GOOD;
    if (b < 0x80) {
        *cp = b;
        return 1;
    }
    *state = UTF8_BAD;
    if (b < 0xc2 || b > 0xf4) return 1;
    need = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
    v = b & (0x3fu >> need);
    /* the second byte's range keeps out overlong forms, surrogates and what is past U+10FFFF */
    if (b == 0xe0) lo = 0xa0;
    if (b == 0xed) hi = 0x9f;
    if (b == 0xf0) lo = 0x90;
    if (b == 0xf4) hi = 0x8f;
    for (size_t i = 1; i <= need; i++) {
        if (i >= n) {
            *state = UTF8_CUT;
            return i;
        }
        if (s[i] < lo || s[i] > hi) return i;
        v = v << 6 | (s[i] & 0x3f);
        lo = 0x80;
        hi = 0xbf;
    }
    *state = UTF8_GOOD;
    *cp = v;
    return need + 1;
}

size_t cn_utf8_valid_len(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    enum utf8_state state;
    uint32_t cp;
    size_t i = 0;

    while (i < n) {
        uint64_t word;

        if (n - i >= 8) { /* eight ASCII bytes at once */
            memcpy(&word, p + i, 8);
            if (!(word & 0x8080808080808080u)) {
                i += 8;
                continue;
            }
        }
        size_t len = utf8_step(p + i, n - i, &cp, &state);
        if (state != UTF8_GOOD) break;
        i += len;
    }
    return i;
}

size_t cn_utf8_tail_len(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;

    for (size_t k = 1; k <= 3 && k <= n; k++) {
        enum utf8_state state;
        uint32_t cp;

        if ((p[n - k] & 0xc0) == 0x80) continue; /* a continuation byte: look further back */
        return utf8_step(p + n - k, k, &cp, &state) == k && state == UTF8_CUT ? k : 0;
    }
    return 0;
}

size_t cn_utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    enum utf8_state state;
    uint32_t v;
    size_t len = utf8_step((const uint8_t *)s, n, &v, &state);

    if (state != UTF8_GOOD) return 0;
    *cp = v;
    return len;
}

size_t cn_utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        if (cp >= 0xd800 && cp <= 0xdfff) return 0;
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    if (cp > 0x10ffff) return 0;
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

/* ---- SipHash --------------------------------------------------------------------------------- */

static inline uint64_t rotl(uint64_t x, int b)
{
    return x << b | x >> (64 - b);
}

static inline uint64_t load_le64(const uint8_t *p)
{
    uint64_t v = 0;

    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static inline void sip_rounds(uint64_t v[4], int rounds)
{
    for (int i = 0; i < rounds; i++) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotl(v[1], 13) ^ v[0];
        v[3] = rotl(v[3], 16) ^ v[2];
        v[0] = rotl(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotl(v[1], 17) ^ v[2];
        v[3] = rotl(v[3], 21) ^ v[0];
        v[2] = rotl(v[2], 32);
    }
}

/* Key setup and compression; `tweak` goes into v1 (0xee for 128-bit output). */
static inline void sip_absorb(uint64_t v[4], const uint8_t key[16], const uint8_t *p, size_t n,
                              int rounds, uint64_t tweak)
{
    uint64_t k0 = load_le64(key), k1 = load_le64(key + 8), m = (uint64_t)n << 56;
    size_t whole = n & ~(size_t)7;

    v[0] = k0 ^ 0x736f6d6570736575u;
    v[1] = k1 ^ 0x646f72616e646f6du ^ tweak;
    v[2] = k0 ^ 0x6c7967656e657261u;
    v[3] = k1 ^ 0x7465646279746573u;
    for (size_t i = 0; i < whole; i += 8) {
        uint64_t w = load_le64(p + i);
        v[3] ^= w;
        sip_rounds(v, rounds);
        v[0] ^= w;
    }
    for (size_t i = whole; i < n; i++)
        m |= (uint64_t)p[i] << 8 * (i & 7);
    v[3] ^= m;
    sip_rounds(v, rounds);
    v[0] ^= m;
}

static inline uint64_t sip_finish(uint64_t v[4], int rounds)
{
    sip_rounds(v, rounds);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint64_t cn_siphash13(const uint8_t key[16], const void *data, size_t n)
{
    uint64_t v[4];

    sip_absorb(v, key, data, n, 1, 0);
    v[2] ^= 0xff;
    return sip_finish(v, 3);
}

void cn_siphash24_128(const uint8_t key[16], const void *data, size_t n, uint8_t out[16])
{
    uint64_t v[4], half[2];

    sip_absorb(v, key, data, n, 2, 0xee);
    v[2] ^= 0xee;
    half[0] = sip_finish(v, 4);
    v[1] ^= 0xdd;
    half[1] = sip_finish(v, 4);
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)(half[i / 8] >> 8 * (i % 8));
}

/* ---- random, hex, clocks --------------------------------------------------------------------- */

void cn_random(void *p, size_t n)
{
    uint8_t *out = p;

#ifdef __linux__
    while (n > 0) {
        ssize_t got = getrandom(out, n, 0);

        if (got < 0 && errno == EINTR) continue;
        cn_assert(got > 0);
        out += got;
        n -= (size_t)got;
    }
#else
    arc4random_buf(out, n);
#endif
}

int cn_hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

void cn_hex(const void *p, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *b = p;

    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[b[i] >> 4];
        out[2 * i + 1] = digits[b[i] & 15];
    }
    out[2 * n] = '\0';
}

struct cn_size cn_size(uint64_t bytes)
{
    struct cn_size s;

    if (bytes < 1024)
        snprintf(s.text, sizeof s.text, "%u bytes", (unsigned)bytes);
    else if (bytes < 1048576)
        snprintf(s.text, sizeof s.text, "%.1f KiB", (double)bytes / 1024);
    else
        snprintf(s.text, sizeof s.text, "%.1f MiB", (double)bytes / 1048576);
    return s;
}

bool cn_parse_u64(const char *s, size_t n, uint64_t *out)
{
    uint64_t v = 0;

    if (!n) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || !cn_mul_u64(v, 10, &v) ||
            !cn_add_u64(v, (uint64_t)(s[i] - '0'), &v))
            return false;
    }
    *out = v;
    return true;
}

bool cn_parse_double(const char *s, double *out)
{
    char *end;

    /* keeps out hex, "inf" and "nan", which strtod would take */
    if (!*s || strspn(s, "0123456789.+-eE") != strlen(s)) return false;
    double v = strtod(s, &end);
    if (*end || !isfinite(v)) return false;
    *out = v;
    return true;
}

uint64_t cn_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t cn_thread_ns(void)
{
    struct timespec t = {0};

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int64_t cn_wall_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec;
}
