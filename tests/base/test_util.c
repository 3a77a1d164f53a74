/* base/util.c: UTF-8 against an encoder written here from RFC 3629's table, SipHash against what
 * OpenSSL's own SIPHASH prints, hex, random, clocks. */
#include "base/base.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* RFC 3629 section 3, by its table. */
static size_t reference_encode(uint32_t cp, uint8_t *o)
{
    static const struct {
        uint32_t last;
        uint8_t lead;
        size_t len;
    } rows[] = {{0x7f, 0, 1}, {0x7ff, 0xc0, 2}, {0xffff, 0xe0, 3}, {0x10ffff, 0xf0, 4}};
    for (size_t r = 0; r < 4; r++) {
        if (cp > rows[r].last) continue;
        for (size_t i = rows[r].len; i-- > 1; cp /= 64)
            o[i] = (uint8_t)(0x80 + cp % 64);
        o[0] = (uint8_t)(rows[r].lead + cp);
        return rows[r].len;
    }
    return 0;
}

static void every_scalar_value(void **state)
{
    for (uint32_t cp = 0; cp <= 0x110010; cp++) {
        uint8_t want[4];
        char got[4];
        uint32_t back = 1;
        bool scalar = cp <= 0x10ffff && !(cp >= 0xd800 && cp <= 0xdfff);
        size_t n = reference_encode(cp, want);

        if (!scalar) {
            assert_int_equal(cn_utf8_encode(cp, got), 0);
            if (n) { /* a surrogate, spelled out */
                assert_int_equal(cn_utf8_decode((char *)want, n, &back), 0);
                assert_int_equal(cn_utf8_valid_len((char *)want, n), 0);
            }
            continue;
        }
        assert_int_equal(cn_utf8_encode(cp, got), n);
        assert_memory_equal(got, want, n);
        assert_int_equal(cn_utf8_decode(got, n, &back), n);
        assert_int_equal(back, cp);
        assert_int_equal(cn_utf8_valid_len(got, n), n);
        assert_int_equal(cn_utf8_tail_len(got, n), 0);
        for (size_t cut = 1; cut < n; cut++) { /* every proper start waits for more */
            assert_int_equal(cn_utf8_decode(got, cut, &back), 0);
            assert_int_equal(cn_utf8_valid_len(got, cut), 0);
            assert_int_equal(cn_utf8_tail_len(got, cut), cut);
        }
    }
}

/* Every sequence of three bytes: it is valid as a whole exactly when it splits into encodings. */
static void every_three_bytes(void **state)
{
    uint8_t *good = calloc(1 << 24, 1); /* bit k-1: the first k bytes are one encoding */

    assert_non_null(good);
    for (uint32_t cp = 0; cp <= 0xffff; cp++) {
        uint8_t e[4];
        size_t n = reference_encode(cp, e);
        if (cp >= 0xd800 && cp <= 0xdfff) continue;
        if (n == 3) good[e[0] << 16 | e[1] << 8 | e[2]] |= 4;
        if (n == 2)
            for (int x = 0; x < 256; x++)
                good[e[0] << 16 | e[1] << 8 | x] |= 2;
    }
    for (uint32_t w = 0; w < 1 << 24; w++) {
        char s[3] = {(char)(w >> 16), (char)(w >> 8), (char)w};
        uint8_t b1 = (uint8_t)s[1], b2 = (uint8_t)s[2];
        size_t first = w >> 16 < 0x80 ? 1 : good[w] & 2 ? 2 : good[w] & 4 ? 3 : 0;
        size_t want = first;
        uint32_t cp;

        if (first == 1 && b1 < 0x80)
            want = 2 + (b2 < 0x80);
        else if (first == 1 && good[b1 << 16 | b2 << 8] & 2)
            want = 3;
        else if (first == 2 && b2 < 0x80)
            want = 3;
        if (cn_utf8_decode(s, 3, &cp) != first || cn_utf8_valid_len(s, 3) != want)
            fail_msg("%06x: want %zu %zu", w, first, want);
    }
    free(good);
}

/* Four-byte sequences whose later bytes stand at the edges of what is allowed. */
static void four_bytes_at_the_edges(void **state)
{
    static const uint8_t edge[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff};
    size_t seen = 0;

    for (int a = 0xf0; a < 0x100; a++)
        for (int b = 0; b < 0x100; b++)
            for (size_t c = 0; c < CN_ARRAY_LEN(edge); c++)
                for (size_t d = 0; d < CN_ARRAY_LEN(edge); d++) {
                    char s[4] = {(char)a, (char)b, (char)edge[c], (char)edge[d]};
                    uint32_t value = (uint32_t)(a & 7) << 18 | (uint32_t)(b & 63) << 12 |
                                     (uint32_t)(edge[c] & 63) << 6 | (uint32_t)(edge[d] & 63);
                    bool want = a <= 0xf7 && b >> 6 == 2 && edge[c] >> 6 == 2 &&
                                edge[d] >> 6 == 2 && value >= 0x10000 && value <= 0x10ffff;
                    uint32_t cp;
                    assert_int_equal(cn_utf8_decode(s, 4, &cp), want ? 4 : 0);
                    if (want) assert_int_equal(cp, value);
                    seen += want;
                }
    assert_true(seen > 1000);
}

static void tail_of_mixed_text(void **state)
{
    static const struct {
        const char *s;
        size_t tail;
    } cases[] = {
        {"", 0},
        {"abc", 0},
        {"ab\xc3", 1},
        {"\xc3\xa9\xe2\x82", 2},
        {"\xf0\x9f\x98", 3},
        {"\xf0\x9f", 2},
        {"\xf0", 1},
        {"\xc0", 0},
        {"\xf5", 0},
        {"\xe0\x80", 0},
        {"\xed\xa0", 0},
        {"\xf4\x90", 0},
        {"\xe2\x82\xac", 0},
        {"a\x80", 0},
        {"\x80\x80\x80\x80", 0},
        {"\xe2\x82\xac\x80", 0},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++)
        assert_int_equal(cn_utf8_tail_len(cases[i].s, strlen(cases[i].s)), cases[i].tail);
    assert_int_equal(cn_utf8_valid_len("0123456789\xc3\xa9xyz\xff", 16), 15);
    assert_int_equal(cn_utf8_valid_len("01234567", 8), 8);
}

/* From `openssl mac -macopt hexkey:000102..0f -macopt c-rounds:N -macopt d-rounds:N SIPHASH` over
 * the first n bytes of 00 01 02 .. ff 00 01 ..; the rows of n = 0 and 1 are also in the reference
 * implementation's published vectors. */
static const struct {
    size_t n;
    const char *sip13, *sip24_128;
} vectors[] = {
    {0, "dcc40f055801acab", "a3817f04ba25a8e66df67214c7550293"},
    {1, "93ca577df39bf4c9", "da87c1d86b99af44347659119b22fc45"},
    {7, "4011b19b987d92d3", "a1f1ebbed8dbc153c0b84aa61ff08239"},
    {8, "8e9a298d11959036", "3b62a9ba6258f5610f83e264f31497b4"},
    {15, "5699512a6dd820d3", "5493e99933b0a8117e08ec0f97cfc3d9"},
    {16, "668b907d1add4fcc", "6ee2a4ca67b054bbfd3315bf85230577"},
    {63, "a8b3bbb76290199d", "5150d1772f50834a503e069a973fbd7c"},
    {64, "65604a4bec9779f1", "1eaf077dc0d4cd3f8cad4d383658a74b"},
    {255, "154a3c15e31462f7", "1c9bb67528165f8e468248e3799b0eab"},
    {1000, "dfca70f2d4d9f82c", "24dafa789ae03d86536a4b57372f0ba6"},
};

static void siphash_vectors(void **state)
{
    uint8_t key[16], room[1001], *data = room + 1; /* not aligned */

    for (int i = 0; i < 16; i++)
        key[i] = (uint8_t)i;
    for (int i = 0; i < 1000; i++)
        data[i] = (uint8_t)i;
    for (size_t i = 0; i < CN_ARRAY_LEN(vectors); i++) {
        uint64_t h = cn_siphash13(key, data, vectors[i].n);
        uint8_t le[8], out[16];
        char hex[33];

        for (int k = 0; k < 8; k++)
            le[k] = (uint8_t)(h >> 8 * k);
        cn_hex(le, 8, hex);
        assert_string_equal(hex, vectors[i].sip13);
        cn_siphash24_128(key, data, vectors[i].n, out);
        cn_hex(out, 16, hex);
        assert_string_equal(hex, vectors[i].sip24_128);
    }
}

static void numbers_from_text(void **state)
{
    static const struct {
        const char *text;
        bool good;
        uint64_t v;
    } counts[] = {{"0", true, 0},
                  {"007", true, 7},
                  {"18446744073709551615", true, UINT64_MAX},
                  {"18446744073709551616", false, 0},
                  {"99999999999999999999999", false, 0},
                  {"", false, 0},
                  {"-1", false, 0},
                  {"+1", false, 0},
                  {" 1", false, 0},
                  {"1x", false, 0}};
    static const struct {
        const char *text;
        bool good;
        double v;
    } doubles[] = {{"0", true, 0},    {"-1.5", true, -1.5}, {"+2e3", true, 2000},
                   {".5", true, 0.5}, {"1e999", false, 0},  {"inf", false, 0},
                   {"nan", false, 0}, {"0x10", false, 0},   {"", false, 0},
                   {"-", false, 0},   {"1 ", false, 0},     {"1e", false, 0},
                   {"1,5", false, 0}};
    (void)state;

    for (size_t i = 0; i < CN_ARRAY_LEN(counts); i++) {
        uint64_t v = 42;
        assert_int_equal(cn_parse_u64(counts[i].text, strlen(counts[i].text), &v), counts[i].good);
        assert_true(v == (counts[i].good ? counts[i].v : 42));
    }
    for (size_t i = 0; i < CN_ARRAY_LEN(doubles); i++) {
        double v = 42;
        assert_int_equal(cn_parse_double(doubles[i].text, &v), doubles[i].good);
        assert_true(v == (doubles[i].good ? doubles[i].v : 42));
    }
}

static void random_and_clocks(void **state)
{
    uint8_t a[64] = {0}, b[64] = {0}, big[70000] = {0};
    size_t zero = 0;

    cn_random(a, sizeof a);
    cn_random(b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
    cn_random(big, sizeof big); /* more than one call of getrandom may give */
    for (size_t i = sizeof big - 1024; i < sizeof big; i++)
        zero += big[i] == 0;
    assert_in_range(zero, 0, 40); /* 4 expected of 1024 */
    uint64_t t0 = cn_now_ns();
    usleep(2000);
    assert_in_range(cn_now_ns() - t0, 2000000, UINT64_C(5000000000));
    assert_true(cn_wall_s() > 1700000000);
}

static void checked_arithmetic(void **state)
{
    uint64_t v = 7;

    assert_true(cn_add_u64(UINT64_MAX - 1, 1, &v) && v == UINT64_MAX);
    assert_false(cn_add_u64(UINT64_MAX, 1, &v));
    assert_true(cn_mul_u64(UINT64_C(1) << 32, UINT32_MAX, &v) && v == UINT64_MAX << 32);
    assert_false(cn_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &v));
    assert_true(cn_align_u64(0, 32, &v) && v == 0);
    assert_true(cn_align_u64(33, 32, &v) && v == 64);
    assert_true(cn_align_u64(64, 32, &v) && v == 64);
    assert_false(cn_align_u64(UINT64_MAX - 3, 32, &v));
}

static void sizes_for_people(void **state)
{
    assert_string_equal(cn_size(0).text, "0 bytes");
    assert_string_equal(cn_size(1023).text, "1023 bytes");
    assert_string_equal(cn_size(1536).text, "1.5 KiB");
    assert_string_equal(cn_size(1048576).text, "1.0 MiB");
    assert_string_equal(cn_size(UINT64_MAX).text, "17592186044416.0 MiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scalar_value),      cmocka_unit_test(every_three_bytes),
        cmocka_unit_test(four_bytes_at_the_edges), cmocka_unit_test(tail_of_mixed_text),
        cmocka_unit_test(siphash_vectors),         cmocka_unit_test(numbers_from_text),
        cmocka_unit_test(random_and_clocks),       cmocka_unit_test(checked_arithmetic),
        cmocka_unit_test(sizes_for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
