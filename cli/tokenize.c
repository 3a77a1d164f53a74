/* conifer tokenize: ids of standard input by a model's own tokenizer. Vocabulary-only files do. */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print_ids(const struct eng_ids *ids, struct cn_error *err)
{
    for (size_t i = 0; i < ids->n; i++)
        printf(i ? " %u" : "%u", ids->v[i]);
    putchar('\n');
    return fflush(stdout) ? cn_fail(err, CN_EIO, "standard output: %s", strerror(errno)) : 0;
}

static int print_lines(const struct eng_ids *ids, const struct eng_vocab *v, struct cn_error *err)
{
    struct cn_buf b;
    int rc = 0;

    cn_buf_init(&b, 0);
    for (size_t i = 0; i < ids->n; i++) {
        struct eng_str s = eng_vocab_piece(v, ids->v[i], true);
        cn_buf_printf(&b, "%u\t", ids->v[i]);
        cn_buf_json_str(&b, s.p, s.n);
        cn_buf_putc(&b, '\n');
    }
    if (b.failed)
        rc = cn_fail(err, CN_ENOMEM, "out of memory");
    else if (b.len && (fwrite(b.data, 1, b.len, stdout) != b.len || fflush(stdout)))
        rc = cn_fail(err, CN_EIO, "standard output: %s", strerror(errno));
    cn_buf_fini(&b);
    return rc;
}

static int tokenize(const char *path, bool ids_only, bool special, struct cn_error *err)
{
    struct eng_gguf *g = NULL;
    struct eng_vocab *v = NULL;
    struct eng_ids ids = {0};
    struct cn_buf text;
    int rc = eng_gguf_open(path, &g, err);

    cn_buf_init(&text, 0);
    if (!rc) rc = eng_gguf_vocab(g, &v, err);
    if (!rc) rc = cli_read_text(&text, err);
    unsigned flags = ENG_TOKENIZE_PARSE | (special ? ENG_TOKENIZE_SPECIAL : 0u);
    if (!rc) rc = eng_tokenize(v, text.data ? text.data : "", text.len, NULL, 0, flags, &ids, err);
    if (!rc) rc = ids_only ? print_ids(&ids, err) : print_lines(&ids, v, err);
    cn_buf_fini(&text);
    eng_ids_fini(&ids);
    eng_vocab_free(v);
    eng_gguf_close(g);
    return rc;
}

static void help(void)
{
    puts("usage: conifer tokenize MODEL.gguf|NAME [--ids] [--no-special] < TEXT\n\n"
         "One line per token: its id, a tab, its text as a JSON string.\n\n"
         "  --ids         only the ids, on one line\n"
         "  --no-special  do not add what the vocabulary puts at the beginning and the end\n"
         "  --model FILE|NAME, --config FILE, --set KEY=VALUE\n"
         "                the model, said otherwise\n"
         "  -h, --help    this text");
}

int cli_tokenize(int argc, char **argv)
{
    static const struct option options[] = {{"ids", no_argument, NULL, 'i'},
                                            {"no-special", no_argument, NULL, 'n'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, CLI_AND_CONFIG}};
    struct cn_error err = {0};
    struct cli_stack s;
    bool ids_only = false, special = true;
    int opt, status = 0, rc = cli_stack_config(&s, &argc, argv, &err);

    optind = 0;
    while (!rc && (opt = cli_option(argv[0], argc, argv, options)) != -1) {
        if (opt == 'i') ids_only = true;
        if (opt == 'n') special = false;
        if (opt != 'h' && opt != '?') continue;
        if (opt == 'h') help();
        cli_stack_close(&s);
        return opt == 'h' ? 0 : 2;
    }
    if (!rc) rc = cli_one_model(&s, argc, argv, &status, &err);
    if (!rc && !status) rc = tokenize(s.path, ids_only, special, &err);
    if (rc) status = cli_error(argv[0], &err);
    cli_stack_close(&s);
    return status;
}
