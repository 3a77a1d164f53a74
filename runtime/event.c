/* Events: one allocation each (and the reason of a failure), made by the engine thread, freed by who
 * took them. */
#include "runtime/rt.h"

#include <stdlib.h>
#include <string.h>

struct rt_event *rt_event_new(uint64_t id, enum rt_event_kind kind, uint32_t choice,
                              const struct rt_event_parts *parts)
{
    static const struct rt_event_parts none;
    const struct rt_event_parts *p = parts ? parts : &none;
    size_t stop_len = p->stop_text ? strlen(p->stop_text) + 1 : 0;
    size_t tokens_bytes = p->n_tokens * sizeof *p->tokens, top_bytes = p->n_top * sizeof *p->top;
    size_t vector_bytes = p->n_vector * sizeof *p->vector;
    size_t text_len = p->text ? p->text->text.len : 0, n_runs = p->text ? p->text->n_runs : 0;
    size_t runs_bytes = n_runs * sizeof(struct eng_run);
    struct rt_event *e = calloc(1, sizeof *e + runs_bytes + tokens_bytes + top_bytes +
                                    vector_bytes + text_len + stop_len);
    if (!e) return NULL;
    char *at = (char *)(e + 1);
    e->id = id;
    e->kind = kind;
    e->choice = choice;
    if (n_runs) e->runs = memcpy(at, p->text->runs, runs_bytes);
    e->n_runs = n_runs;
    at += runs_bytes;
    if (p->n_tokens) e->tokens = memcpy(at, p->tokens, tokens_bytes);
    e->n_tokens = p->n_tokens;
    at += tokens_bytes;
    if (p->n_top) e->top = memcpy(at, p->top, top_bytes);
    at += top_bytes;
    if (p->n_vector) e->vector = memcpy(at, p->vector, vector_bytes);
    e->n_vector = p->n_vector;
    at += vector_bytes;
    e->text = text_len ? memcpy(at, p->text->text.data, text_len) : "";
    e->text_len = text_len;
    at += text_len;
    if (stop_len) e->stop_text = memcpy(at, p->stop_text, stop_len);
    return e;
}

void rt_event_fail(struct rt_event *e, const struct cn_error *err)
{
    e->code = err->code;
    if (!err->message[0]) return;
    e->error = malloc(sizeof *e->error);
    if (e->error) *e->error = *err;
}

void rt_event_free(struct rt_event *e)
{
    if (e) free(e->error);
    free(e);
}
