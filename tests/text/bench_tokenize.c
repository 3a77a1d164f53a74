/* How fast texts become ids on one core, and ids text again.
 *
 *   bench_tokenize [--rounds N] [--kb N] [--vocab FILE.gguf]... [NAME=FILE]...
 *
 * Without --vocab the oracle's vocabularies; without texts the project's own documents and sources,
 * Chinese of drawn words, and a mixture of the three. Each text is brought to --kb KiB (default
 * 256) by cutting it, or by writing its file again and again; the whole of it is one call. Medians
 * of
 * --rounds (default 9), the least in brackets; "hash" tells whether two builds give the same
 * ids. */
#include "engine/text/text.h"
#include "tests/text/vocab_file.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXTS = 16, MAX_VOCABS = 16, MAX_ROUNDS = 99 };

struct text {
    const char *name;
    char *p;
    size_t n;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_tokenize: %s\n", what);
    exit(2);
}

/* To `size` bytes: cut after a whole character, or repeated. */
static struct text fit(const char *name, const char *p, size_t n, size_t size)
{
    struct text t = {name, malloc(size), 0};
    if (n == 0) die("an empty text");
    while (t.n < size) {
        size_t part = CN_MIN(n, size - t.n);
        memcpy(t.p + t.n, p, part);
        t.n += part;
    }
    t.n = size - cn_utf8_tail_len(t.p, size);
    return t;
}

static void add_files(struct cn_buf *out, const char *pattern)
{
    char path[1024];
    glob_t g;
    snprintf(path, sizeof path, CONIFER_SOURCE_ROOT "/%s", pattern);
    if (glob(path, 0, NULL, &g)) return;
    for (size_t i = 0; i < g.gl_pathc; i++) {
        size_t n;
        char *data = read_file(g.gl_pathv[i], &n);
        if (data) cn_buf_append(out, data, n);
        free(data);
    }
    globfree(&g);
}

/* Clauses of drawn words: few of them are written twice, which flatters no cache of pieces. */
static void chinese(struct cn_buf *out, size_t size)
{
    static const char *const words[] = {
        "我们", "的",   "模型", "可以", "在",   "服务器", "上",   "运行", "语言", "这个", "问题",
        "需要", "时间", "如果", "用户", "请求", "回答",   "系统", "数据", "使用", "方法", "因此",
        "结果", "北京", "大学", "研究", "人员", "发现",   "很多", "城市", "经济", "发展", "已经",
        "开始", "进行", "新",   "是",   "不",   "了",     "和",   "与",   "对",   "中国", "历史",
        "文化", "学生", "老师", "认为", "应该", "学习",   "更",   "好",   "水",   "山",   "路",
        "天气", "今天", "明天", "工作", "公司", "计算机", "程序", "内存", "线程", "同时", "处理",
        "多个", "任务", "提高", "效率", "速度"};
    static const char *const ends[] = {"，", "，", "，", "。", "。\n", "；", "？", "：", "、"};
    uint64_t seed = 1;
    while (out->len < size) {
        size_t n = 3 + (seed >> 40) % 8;
        for (size_t i = 0; i <= n; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const char *w = i < n ? words[(seed >> 33) % CN_ARRAY_LEN(words)]
                                  : ends[(seed >> 33) % CN_ARRAY_LEN(ends)];
            cn_buf_append(out, w, strlen(w));
        }
    }
}

static size_t default_texts(struct text *t, size_t size)
{
    struct cn_buf b;
    cn_buf_init(&b, 0);
    add_files(&b, "docs/*.md");
    t[0] = fit("english", b.data, b.len, size);
    b.len = 0;
    add_files(&b, "engine/text/*.c");
    t[1] = fit("code", b.data, b.len, size);
    b.len = 0;
    chinese(&b, size);
    t[2] = fit("chinese", b.data, b.len, size);
    b.len = 0;
    for (size_t at = 0; at + 512 <= t[2].n; at += 512) {
        for (int k = 0; k < 3; k++) {
            size_t from = at; /* whole characters, so that no text is damaged */
            while (from > 0 && ((uint8_t)t[k].p[from] & 0xC0) == 0x80)
                from--;
            size_t n = 512 - cn_utf8_tail_len(t[k].p + from, 512);
            cn_buf_append(&b, t[k].p + from, n);
        }
    }
    t[3] = fit("mixed", b.data, b.len, size);
    cn_buf_fini(&b);
    return 4;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double detok_ns(const struct eng_vocab *v, const struct eng_ids *ids, struct cn_buf *out)
{
    struct eng_detok d;
    uint64_t t = cn_now_ns();
    eng_detok_init(&d, v, false, true);
    for (size_t i = 0; i < ids->n; i++) {
        out->len = 0; /* as a stream does: a token's text is taken at once */
        if (eng_detok_push(&d, ids->v[i], out)) die("detokenising failed");
    }
    return (double)(cn_now_ns() - t) / (double)CN_MAX(ids->n, (size_t)1);
}

static void measure(const struct eng_vocab *v, const char *vocab, const struct text *t, int rounds)
{
    double ns[MAX_ROUNDS], back[MAX_ROUNDS];
    struct eng_ids ids = {0};
    struct cn_buf out;
    cn_buf_init(&out, 0);
    for (int r = -1; r < rounds; r++) { /* the first one warms up */
        ids.n = 0;
        uint64_t start = cn_now_ns();
        if (eng_tokenize(v, t->p, t->n, NULL, 0, ENG_TOKENIZE_PARSE, &ids, NULL))
            die("tokenising failed");
        double took = (double)(cn_now_ns() - start), d = detok_ns(v, &ids, &out);
        if (r < 0) continue;
        ns[r] = took;
        back[r] = d;
    }
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < ids.n; i++)
        hash = (hash ^ ids.v[i]) * 1099511628211u;
    qsort(ns, (size_t)rounds, sizeof *ns, by_value);
    qsort(back, (size_t)rounds, sizeof *back, by_value);
    double mb = (double)t->n / 1e6;
    printf("%-16.16s %-10s %7.1f MB/s (%.1f)  %6.2f bytes/token  back %5.1f ns/token  hash %08x\n",
           vocab, t->name, mb * 1e9 / ns[rounds / 2], mb * 1e9 / ns[rounds - 1],
           (double)t->n / (double)ids.n, back[rounds / 2], (unsigned)(hash ^ hash >> 32));
    eng_ids_fini(&ids);
    cn_buf_fini(&out);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strncmp(name, "ggml-vocab-", 11) == 0 ? name + 11 : name;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"gpt-2",        "llama-bpe", "qwen35", "falcon",
                                        "deepseek-llm", "llama-spm", "phi-3"};
    char vocabs[MAX_VOCABS][1024];
    struct text texts[MAX_TEXTS];
    size_t n_vocabs = 0, n_texts = 0, size = 256 << 10;
    int rounds = 9;
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        char *equals = strchr(argv[i], '=');
        if (strcmp(argv[i], "--rounds") == 0 && more)
            rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--kb") == 0 && more)
            size = (size_t)atoi(argv[++i]) << 10;
        else if (strcmp(argv[i], "--vocab") == 0 && more && n_vocabs < MAX_VOCABS)
            snprintf(vocabs[n_vocabs++], sizeof vocabs[0], "%s", argv[++i]);
        else if (equals && n_texts < MAX_TEXTS && size) {
            size_t n;
            *equals = '\0';
            char *data = read_file(equals + 1, &n);
            if (!data) die("a text cannot be read");
            texts[n_texts++] = fit(argv[i], data, n, size);
            free(data);
        } else
            die("[--rounds N] [--kb N] [--vocab FILE]... [NAME=FILE]...");
    }
    if (rounds < 1 || rounds > MAX_ROUNDS || !size) die("--rounds 1..99, --kb at least 1");
    if (!n_texts) n_texts = default_texts(texts, size);
    bool given = n_vocabs > 0;
    for (size_t i = 0; i < CN_ARRAY_LEN(names) && !given; i++)
        snprintf(vocabs[n_vocabs++], sizeof vocabs[0], "%s", vocab_path(names[i], ""));
    for (size_t i = 0; i < n_vocabs; i++) {
        struct vocab_file f;
        struct eng_vocab *v = NULL;
        if (!vocab_file_read(&f, vocabs[i])) continue;
        uint64_t start = cn_now_ns();
        if (eng_vocab_new(&f.spec, &v, NULL)) die("not a vocabulary of ours");
        printf("%-16.16s built in %.1f ms\n", base_name(vocabs[i]),
               (double)(cn_now_ns() - start) / 1e6);
        for (size_t k = 0; k < n_texts; k++)
            measure(v, base_name(vocabs[i]), &texts[k], rounds);
        vocab_file_fini(&f);
        eng_vocab_free(v);
    }
    for (size_t k = 0; k < n_texts; k++)
        free(texts[k].p);
    return 0;
}
