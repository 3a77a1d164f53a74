/* Requests: what chance decides about each, and its body. All of it follows from the seed and the
 * request's number. */
#include "loadtest/loadtest.h"

#include <string.h>

/* Short words that most vocabularies hold whole, with the space before them. */
static const char *const words[] = {
    "time",    "year",   "people", "way",    "day",    "man",     "thing",   "woman",  "life",
    "child",   "world",  "school", "state",  "family", "house",   "group",   "part",   "place",
    "case",    "week",   "work",   "night",  "point",  "home",    "water",   "room",   "mother",
    "area",    "money",  "story",  "fact",   "month",  "lot",     "right",   "study",  "book",
    "eye",     "job",    "word",   "side",   "kind",   "head",    "friend",  "father", "power",
    "hour",    "game",   "line",   "end",    "member", "law",     "car",     "city",   "name",
    "team",    "minute", "idea",   "body",   "back",   "parent",  "face",    "level",  "office",
    "door",    "health", "person", "art",    "war",    "history", "party",   "result", "change",
    "morning", "reason", "girl",   "moment", "air",    "force",   "foot",    "boy",    "age",
    "music",   "market", "sense",  "table",  "field",  "plan",    "paper",   "space",  "ground",
    "form",    "event",  "matter", "center", "couple", "site",    "project", "star",   "need",
    "price",   "red",    "green",  "blue",   "large",  "small",   "long",    "short",  "high",
    "low",     "early",  "late",   "young",  "old",    "good",    "bad",     "new",    "first",
    "last",    "great",  "little", "make",   "take",   "come",    "see",     "know",   "think",
    "look",    "want",   "give",   "use",
};

/* What separates the warm-up's draws from those of the measured requests. */
static uint64_t numbered(uint64_t request, bool warm)
{
    return request << 1 | warm;
}

void lt_shape_draw(const struct lt_scenario *s, size_t class_index, uint64_t request, bool warm,
                   uint64_t seed, struct lt_shape *out)
{
    const struct lt_class *c = &s->classes[class_index];
    struct lt_rand r;
    double total = 0, at;

    memset(out, 0, sizeof *out);
    lt_rand_init(&r, seed, LT_R_SHAPE, class_index, numbered(request, warm));
    out->prompt_tokens = lt_len_draw(&c->prompt_tokens, &r);
    out->answer_tokens = lt_len_draw(&c->answer_tokens, &r);
    out->aborts = lt_rand_unit(&r) <= c->abort_share;
    out->abort_events = lt_len_draw(&c->abort_events, &r);
    out->slow = lt_rand_unit(&r) <= c->slow_share;
    for (size_t i = 0; i < s->n_tenants; i++)
        total += s->tenants[i].share;
    at = lt_rand_unit(&r) * total;
    for (size_t i = 0; i < s->n_tenants; i++) {
        if (s->tenants[i].share <= 0) continue;
        out->tenant = i; /* the last one with a share takes what rounding leaves */
        at -= s->tenants[i].share;
        if (at <= 0) break;
    }
}

static void put_ids(const struct lt_class *c, struct lt_rand *r, uint64_t n, bool *first,
                    struct cn_buf *out)
{
    for (uint64_t i = 0; i < n && !out->failed; i++) {
        uint64_t id = (uint64_t)c->ids_from + lt_rand_below(r, (uint64_t)(c->ids_to - c->ids_from));
        char text[24], *p = text + sizeof text;

        do {
            *--p = (char)('0' + id % 10);
            id /= 10;
        } while (id);
        if (!*first) *--p = ',';
        *first = false;
        cn_buf_append(out, p, (size_t)(text + sizeof text - p));
    }
}

static void put_words(struct lt_rand *r, uint64_t n, bool *first, struct cn_buf *out)
{
    for (uint64_t i = 0; i < n && !out->failed; i++) {
        if (!*first) cn_buf_putc(out, ' ');
        *first = false;
        cn_buf_puts(out, words[lt_rand_below(r, CN_ARRAY_LEN(words))]);
    }
}

static void put_messages(const struct lt_class *c, struct lt_rand *shared, struct lt_rand *own,
                         uint64_t n, struct cn_buf *out)
{
    bool first = true;

    cn_buf_puts(out, ",\"messages\":[");
    if (c->prefix_tokens) {
        cn_buf_puts(out, "{\"role\":\"system\",\"content\":\"");
        put_words(shared, (uint64_t)c->prefix_tokens, &first, out);
        cn_buf_puts(out, "\"},");
    }
    first = true;
    cn_buf_puts(out, "{\"role\":\"user\",\"content\":\"");
    put_words(own, n, &first, out);
    cn_buf_puts(out, "\"}]");
}

/* The members of the object in extra, which lt_scenario_check has read. */
static void put_extra(const char *extra, struct cn_buf *out)
{
    const char *open = strchr(extra, '{'), *close = strrchr(extra, '}');
    const char *inside = open ? open + 1 : NULL;

    if (!open || !close || strspn(inside, " \t\r\n") == (size_t)(close - inside)) return;
    cn_buf_putc(out, ',');
    cn_buf_append(out, inside, (size_t)(close - inside));
}

void lt_body(const struct lt_scenario *s, size_t class_index, uint64_t request, bool warm,
             uint64_t seed, const char *model, const struct lt_shape *shape, struct cn_buf *out)
{
    const struct lt_class *c = &s->classes[class_index];
    struct lt_rand shared, own;
    bool first = true;

    lt_rand_init(&shared, seed, LT_R_PREFIX, request % (uint64_t)c->prefix_groups, warm);
    lt_rand_init(&own, seed, LT_R_PROMPT, class_index, numbered(request, warm));
    cn_buf_puts(out, "{\"model\":");
    cn_buf_json_str(out, model, strlen(model));
    if (c->endpoint == LT_CHAT) {
        put_messages(c, &shared, &own, shape->prompt_tokens, out);
    } else if (c->prompt == LT_PROMPT_IDS) {
        cn_buf_puts(out, ",\"prompt\":[");
        put_ids(c, &shared, (uint64_t)c->prefix_tokens, &first, out);
        put_ids(c, &own, shape->prompt_tokens, &first, out);
        cn_buf_putc(out, ']');
    } else {
        cn_buf_puts(out, ",\"prompt\":\"");
        put_words(&shared, (uint64_t)c->prefix_tokens, &first, out);
        put_words(&own, shape->prompt_tokens, &first, out);
        cn_buf_putc(out, '"');
    }
    cn_buf_printf(out, ",\"max_tokens\":%llu,\"temperature\":%g%s",
                  (unsigned long long)shape->answer_tokens, c->temperature,
                  c->ignore_eos ? ",\"ignore_eos\":true" : "");
    if (c->stream) cn_buf_puts(out, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    put_extra(c->extra, out);
    cn_buf_putc(out, '}');
}
