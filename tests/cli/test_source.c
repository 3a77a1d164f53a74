/* cli/source.c, cli/pypi.c's index pages, cli/store.c's stamps and locks, names near to a name. */
#include "cli/pull.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SHA "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void good(const char *text, enum cli_source_kind kind, const char *file, unsigned parts,
                 const char *url)
{
    struct cli_source s;
    struct cn_error e = {0};

    assert_int_equal(cli_source_parse(text, &s, &e), 0);
    assert_int_equal(s.kind, kind);
    assert_string_equal(s.file, file);
    assert_int_equal(s.parts, parts);
    char *got = cli_source_part_url(&s, "https://hub", parts - 1);
    assert_string_equal(got, url);
    free(got);
    cli_source_fini(&s);
}

static void sources(void **state)
{
    good("hf:o/r/m.gguf", CLI_SRC_HUB, "m.gguf", 1, "https://hub/o/r/resolve/main/m.gguf");
    good("hf:o/r@v1.0/a/b c/m.GGUF", CLI_SRC_HUB, "m.GGUF", 1,
         "https://hub/o/r/resolve/v1.0/a/b%20c/m.GGUF");
    good("hf:o/r/q#?%/m.gguf", CLI_SRC_HUB, "m.gguf", 1,
         "https://hub/o/r/resolve/main/q%23%3F%25/m.gguf");
    good("hf:o/r/m-00002-of-00003.gguf", CLI_SRC_HUB, "m-00001-of-00003.gguf", 3,
         "https://hub/o/r/resolve/main/m-00003-of-00003.gguf");
    good("https://h/x/m-00001-of-00002.gguf?a=b#c", CLI_SRC_URL, "m-00001-of-00002.gguf", 2,
         "https://h/x/m-00002-of-00002.gguf?a=b#c");
    good("https://h:8/x/a%2Eb.gguf", CLI_SRC_URL, "a.b.gguf", 1, "https://h:8/x/a%2Eb.gguf");
}

static void sources_that_are_none(void **state)
{
    static const char *const wrong[] = {
        "",
        "m.gguf",
        "hf:",
        "hf:o",
        "hf:o/r",
        "hf:o/r/",
        "hf:/r/m.gguf",
        "hf:o//m.gguf",
        "hf:o/r/m.bin",
        "hf:o/r/.gguf",
        "hf:o/r/../m.gguf",
        "hf:o/r/a/./m.gguf",
        "hf:../r/m.gguf",
        "hf:o/../m.gguf",
        "hf:o/r@../m.gguf",
        "hf:o/r@/m.gguf",
        "hf:o/r/\x01/m.gguf",
        "hf:o/r/m\n.gguf",
        "https://",
        "https://h/",
        "https://h/m.txt",
        "https://h/ m.gguf",
        "https://h/a%2f.gguf",
        "https://h/%0a.gguf",
        "ftp://h/m.gguf",
        "file:///m.gguf",
    };
    struct cli_source s;
    struct cn_error e;

    for (size_t i = 0; i < CN_ARRAY_LEN(wrong); i++)
        assert_int_equal(cli_source_parse(wrong[i], &s, &e), CN_EINVAL);
}

static void splits(void **state)
{
    static const struct {
        const char *name;
        unsigned parts;
    } cases[] = {{"a-00001-of-00004.gguf", 4},
                 {"a-00005-of-00004.gguf", 4},
                 {"a-00000-of-00004.gguf", 4},
                 {"a-00001-of-00000.gguf", 0},
                 {"a-0001-of-00004.gguf", 1},
                 {"a_00001-of-00004.gguf", 1},
                 {"a.gguf", 1},
                 {"-00001-of-00004.gguf", 4}};
    /* a number outside its range makes an ordinary name */
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        bool ordinary = i == 1 || i == 2 || i == 3 || i == 7;
        assert_int_equal(cli_split_parts(cases[i].name), ordinary ? 1 : cases[i].parts);
    }
    char *s = cli_split_name("a-00001-of-00012.gguf", 11, 12);
    assert_string_equal(s, "a-00012-of-00012.gguf");
    free(s);
}

static void origins(void **state)
{
    assert_true(cli_same_origin("https://h/a", "https://H:443/b?c"));
    assert_true(cli_same_origin("http://127.0.0.1:80", "http://127.0.0.1/x"));
    assert_false(cli_same_origin("https://h/a", "http://h/a"));
    assert_false(cli_same_origin("https://h/a", "https://h:444/a"));
    assert_false(cli_same_origin("https://h/a", "https://h.x/a"));
    assert_false(cli_same_origin("https://h@evil/a", "https://h/a"));
    assert_false(cli_same_origin("", "https://h"));
}

static void pick(const char *page, bool json, const char *package, const char *version, int want,
                 const char *want_url)
{
    char *url = NULL, *file = NULL, sha[65];
    int rc = cli_pypi_pick(page, strlen(page), json, "https://index/simple/p/", package, version,
                           &url, &file, sha, NULL);

    assert_int_equal(rc, want);
    if (rc) return;
    assert_string_equal(url, want_url);
    assert_string_equal(sha, SHA);
    assert_int_equal(strcmp(strrchr(url, '/') + 1, file), 0);
    free(url);
    free(file);
}

static void index_pages(void **state)
{
    const char *html = "<a href=\"/f/a_b-1.0.tar.gz#sha256=" SHA "\">a_b-1.0.tar.gz</a>\n"
                       "<a data-x=\"1\" href=\"../../f/A_b-1.0-py3-none-any.whl#sha256=" SHA
                       "\" y>A_b-1.0-py3-none-any.whl</a>"
                       "<a href=\"/f/a_b-1.1-py3-none-any.whl?x=1&amp;y=2#sha256=" SHA
                       "\">a_b-1.1-py3-none-any.whl</a><a href=\"/n/a_b-1.2-py3-none-any.whl\">"
                       "a_b-1.2-py3-none-any.whl</a><a href=\"";
    const char *json = "{\"files\": [{\"filename\": \"a_b-1.0-py3-none-any.whl\", \"url\": "
                       "\"https://f/a_b-1.0-py3-none-any.whl\", \"hashes\": {}}, {\"filename\": "
                       "\"a_b-1.0-py3-none-any.whl\", \"url\": \"x/a_b-1.0-py3-none-any.whl\", "
                       "\"hashes\": {\"sha256\": \"" SHA "\"}}]}";

    pick(html, false, "a-b", "1.0", 0, "https://index/f/A_b-1.0-py3-none-any.whl");
    pick(html, false, "a-b", "1.2", CN_ENOENT, NULL); /* no sum, no use */
    pick(html, false, "a-b", "1", CN_ENOENT, NULL);
    pick(html, false, "a", "1.0", CN_ENOENT, NULL);
    pick(json, true, "A.B", "1.0", 0, "https://index/simple/p/x/a_b-1.0-py3-none-any.whl");
    pick("[1", true, "a-b", "1.0", CN_ENOENT, NULL);
    pick("", false, "a-b", "1.0", CN_ENOENT, NULL);
    pick("<a <a href=<a >", false, "a-b", "1.0", CN_ENOENT, NULL);

    char *url, *file, sha[65];
    for (size_t n = 0; n <= strlen(html); n++) { /* cut anywhere, nothing beyond is read */
        char *cut = malloc(n + 1);
        memcpy(cut, html, n);
        cut = realloc(cut, n ? n : 1);
        if (!cli_pypi_pick(cut, n, false, "https://i/", "a-b", "1.1", &url, &file, sha, NULL)) {
            assert_string_equal(url, "https://i/f/a_b-1.1-py3-none-any.whl?x=1&y=2");
            free(url);
            free(file);
        }
        free(cut);
    }
}

static void suggestions(void **state)
{
    static const struct {
        const char *typed, *meant; /* NULL: nothing is near */
    } cases[] = {{"qwen3-30b", "qwen3-30b-a3b"},
                 {"Qwen3_30B_A3B", "qwen3-30b-a3b"},
                 {"lfm2.5", "lfm2.5-1.2b"},
                 {"gptoss20b", "gpt-oss-20b"},
                 {"smollm2-135", "smollm2-135m"},
                 {"zzzzzzzz", NULL},
                 {"", NULL},
                 {"-", NULL}};
    struct cn_buf b;

    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        cn_buf_init(&b, 0);
        cli_suggest(NULL, cases[i].typed, true, &b);
        if (cases[i].meant)
            assert_non_null(strstr(cn_buf_cstr(&b), cases[i].meant));
        else
            assert_int_equal(b.len, 0);
        cn_buf_fini(&b);
    }
    char longest[5000];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    cn_buf_init(&b, 0);
    cli_suggest(NULL, longest, true, &b);
    cn_buf_fini(&b);
}

static void stamps(void **state)
{
    char dir[] = "/tmp/conifer-stamp-XXXXXX", path[64], sha[65], *from = NULL;

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    FILE *f = fopen(path, "w");
    fputs("12345", f);
    fclose(f);
    assert_false(cli_stamp_read(path, sha, &from));
    cli_stamp_write(path, SHA, "hf:o/r/m.gguf");
    assert_true(cli_stamp_read(path, sha, &from));
    assert_string_equal(sha, SHA);
    assert_string_equal(from, "hf:o/r/m.gguf");
    free(from);
    f = fopen(path, "a");
    fputs("6", f);
    fclose(f);
    assert_false(cli_stamp_read(path, sha, NULL)); /* about another file now */
    cli_stamp_write(path, SHA, NULL);
    assert_true(cli_stamp_read(path, NULL, &from));
    assert_null(from);

    struct cli_lock a, b;
    assert_int_equal(cli_lock(&a, dir, "m.gguf", false, true, NULL), 0);
    assert_int_equal(cli_lock(&b, dir, "m.gguf", false, false, NULL), CN_EBUSY);
    assert_int_equal(cli_lock(&b, dir, "n.gguf", false, false, NULL), 0);
    cli_unlock(&b);
    cli_unlock(&a);
    assert_int_equal(cli_lock(&b, dir, "m.gguf", false, false, NULL), 0);
    cli_unlock(&b);
    char cmd[128];
    snprintf(cmd, sizeof cmd, "test \"$(ls -A %s)\" = \"$(printf 'm.gguf\\nm.gguf.verified')\"",
             dir);
    assert_int_equal(system(cmd), 0);
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    assert_int_equal(system(cmd), 0);
}

static void sizes_in_words(void **state)
{
    static const struct {
        uint64_t n;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {999, "999 B"},
                 {1000, "1.0 kB"},
                 {99940, "99.9 kB"},
                 {99960, "100 kB"},
                 {999600, "1.0 MB"},
                 {18556685824, "18.6 GB"},
                 {UINT64_MAX, "18446744 TB"}};
    char out[32];

    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++)
        assert_string_equal(cli_bytes(cases[i].n, out), cases[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources),     cmocka_unit_test(sources_that_are_none),
        cmocka_unit_test(splits),      cmocka_unit_test(origins),
        cmocka_unit_test(index_pages), cmocka_unit_test(suggestions),
        cmocka_unit_test(stamps),      cmocka_unit_test(sizes_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
