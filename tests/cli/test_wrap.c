/* cli/wrap.c on a terminal of its own: where rows end, and that nothing of a text controls it. */
#include "cli/cli.h"
#include "cli/wrap.h"

#include <setjmp.h>
#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#include <cmocka.h>

/* What stands on a terminal of so many columns after the text, given in pieces of `step` bytes that
 * end with a character. Returned until the next call. */
static const char *shown(const char *text, unsigned short columns, size_t step)
{
    static char got[8192];
    struct winsize size = {.ws_row = 24, .ws_col = columns};
    struct termios raw;
    struct cli_wrap w;
    int ours, theirs;

    assert_int_equal(openpty(&ours, &theirs, NULL, NULL, &size), 0);
    assert_int_equal(tcgetattr(theirs, &raw), 0);
    cfmakeraw(&raw);
    assert_int_equal(tcsetattr(theirs, TCSANOW, &raw), 0);
    FILE *to = fdopen(theirs, "w");
    assert_non_null(to);
    cli_wrap_begin(&w, to, true);
    for (size_t i = 0, n = strlen(text); i < n;) {
        size_t len = CN_MIN(step, n - i);
        while (i + len < n && ((unsigned char)text[i + len] & 0xc0) == 0x80)
            len++;
        cli_wrap_put(&w, text + i, len);
        i += len;
    }
    cli_wrap_flush(&w);
    assert_int_equal(fcntl(ours, F_SETFL, O_NONBLOCK), 0);
    ssize_t n, at = 0;
    while ((n = read(ours, got + at, sizeof got - 1 - (size_t)at)) > 0)
        at += n;
    got[at] = '\0';
    fclose(to);
    close(ours);
    return got;
}

static void is_shown(const char *text, unsigned short columns, const char *want)
{
    for (size_t step = 1; step <= 7; step += 2)
        assert_string_equal(shown(text, columns, step), want);
}

static void words(void **state)
{
    is_shown("one two three four", 9, "one two\nthree\nfour");
    is_shown("exactly10c and", 10, "exactly10c\nand");
    is_shown("a\nb  c\n\n  d", 20, "a\nb  c\n\n  d");
    is_shown("a muchtoolongword b", 8, "a muchtoolongword b"); /* the terminal cuts it */
    is_shown("```\nint main(void) { return 0; }\n```\nwords again here", 12,
             "```\nint main(void) { return 0; }\n```\nwords again\nhere");
    is_shown("| a row | of a table |\nand then words", 10,
             "| a row | of a table |\nand then\nwords");
    is_shown("one two three four", 0, "one two three four"); /* the width is not known */
}

static void widths(void **state)
{
    is_shown("日本語日本語", 5, "日本\n語日\n本語");
    is_shown("日本語。日本", 6, "日本\n語。日\n本"); /* no row begins with a full stop */
    is_shown("gr\xc3\xbc\xc3\x9f"
             "e \xc3\xbc\xc3\xbc\xc3\xbc",
             9,
             "gr\xc3\xbc\xc3\x9f"
             "e \xc3\xbc\xc3\xbc\xc3\xbc");
    is_shown("e\xcc\x81"
             "e\xcc\x81"
             "e\xcc\x81 ab",
             6,
             "e\xcc\x81"
             "e\xcc\x81"
             "e\xcc\x81 ab"); /* 3 columns */
}

static void nothing_controls_the_terminal(void **state)
{
    is_shown("a\033[2Jb\rc\bd\177e\007", 40, "a[2Jbcde");
    is_shown("a\xc2\x9b"
             "2Jb\xc2\x85"
             "c",
             40, "a2Jbc"); /* control characters of the second set */
    assert_string_equal(shown("a\xff"
                              "b\xed\xa0\x80",
                              40, 40),
                        "a\xef\xbf\xbd"
                        "b\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

static int utf8(void **state)
{
    cli_set_locale();
    return wcwidth(0x65e5) == 2 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words),
        cmocka_unit_test(widths),
        cmocka_unit_test(nothing_controls_the_terminal),
    };
    return cmocka_run_group_tests(tests, utf8, NULL);
}
