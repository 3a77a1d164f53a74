#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cli_error(const char *name, const struct cn_error *err)
{
    const char *text = err->message[0] ? err->message : cn_err_info(err->code)->text;

    if (err->param[0] && !strstr(text, err->param))
        fprintf(stderr, "%s: %s: %s\n", name, err->param, text);
    else
        fprintf(stderr, "%s: %s\n", name, text);
    return 1;
}

int cli_check_utf8(const char *what, const struct cn_buf *text, struct cn_error *err)
{
    size_t valid = text->len ? cn_utf8_valid_len(text->data, text->len) : 0;

    if (valid == text->len) return 0;
    return cn_fail(err, CN_EINVAL, "%s is not valid UTF-8: byte 0x%02x at offset %zu", what,
                   (unsigned char)text->data[valid], valid);
}

int cli_read_text(struct cn_buf *text, struct cn_error *err)
{
    char part[65536];
    ssize_t n;

    if (isatty(STDIN_FILENO))
        fprintf(stderr, "(reading the text from standard input, up to Ctrl-D)\n");
    while ((n = read(STDIN_FILENO, part, sizeof part)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cn_fail(err, CN_EIO, "standard input: %s", strerror(errno));
        if (cn_buf_append(text, part, (size_t)n)) return cn_fail(err, CN_ENOMEM, "out of memory");
    }
    return cli_check_utf8("standard input", text, err);
}

void cli_faults(const char *name, const struct cfg *cfg, struct cn_error *err)
{
    size_t n = cfg->faults.count;
    bool among = n && !strcmp(err->message, cfg->faults.items[0]);

    for (size_t i = 0; i + among < n; i++)
        fprintf(stderr, "%s: %s\n", name, cfg->faults.items[i]);
    if (!among || n == 1) return;
    snprintf(err->message, sizeof err->message, "%s", cfg->faults.items[n - 1]);
    err->param[0] = '\0';
}

int cli_usage(const char *name, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "%s: ", name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\nTry %s --help\n", name);
    return 2;
}

void cli_open_standard(void)
{
    static const int modes[] = {O_RDONLY, O_RDONLY, O_WRONLY};

    /* open gives the lowest free number: those below fd are open by then. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        if (open("/dev/null", modes[fd]) != fd) _exit(1);
    }
}

void cli_set_locale(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

int cli_put_json(json_t *value)
{
    char *text = value ? json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;

    json_decref(value);
    if (text) puts(text);
    free(text);
    return text ? 0 : 1;
}

int cli_finish(const char *name, int status)
{
    /* Ctrl-C may cut a write to a terminal short; its user sees that, so it is not an error. */
    bool lost = ferror(stdout) && !isatty(STDOUT_FILENO);
    int why;

    do
        why = fflush(stdout) ? errno : 0;
    while (why == EINTR);
    if (status || (!lost && !why)) return status;
    fprintf(stderr, "%s: standard output: %s\n", name,
            why ? strerror(why) : "not all of it could be written");
    return 1;
}

void cli_progress_start(struct cli_progress *p)
{
    p->started_ns = cn_now_ns();
    p->shown_ns = 0;
    p->shown = false;
    p->tty = isatty(STDERR_FILENO);
}

/* Whether it is time to draw the line again, which is then to be done. */
static bool due(struct cli_progress *p)
{
    uint64_t now = cn_now_ns();

    if (!p->tty || now - p->started_ns < 1000000000u || now - p->shown_ns < 100000000u)
        return false;
    p->shown_ns = now;
    p->shown = true;
    return true;
}

void cli_progress_update(void *arg, uint64_t done, uint64_t total)
{
    struct cli_progress *p = arg;

    if (!due(p)) return;
    fprintf(stderr, "\rloading the model: %3.0f %% of %.0f MiB ",
            total ? 100.0 * (double)done / (double)total : 0.0, (double)total / 1048576);
    fflush(stderr);
}

/* 1234567 as 1,234,567. */
static const char *with_commas(uint64_t n, char out[32])
{
    char digits[24];
    size_t len = (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)n), at = 0;

    for (size_t i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

void cli_progress_tokens(struct cli_progress *p, uint64_t done, uint64_t total)
{
    char a[32], b[32];

    if (!due(p)) return;
    fprintf(stderr, "\rreading the prompt: %s of %s tokens ", with_commas(CN_MIN(done, total), a),
            with_commas(total, b));
    fflush(stderr);
}

void cli_progress_end(struct cli_progress *p)
{
    if (p->shown) fprintf(stderr, "\r\033[K");
    p->shown = false;
}
