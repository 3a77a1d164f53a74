/* Calls in a conversation's history, on their way to a template: ids that it accepts, results in
 * the order that it needs. What a template wants is learnt by rendering a small conversation when
 * it is loaded. Any thread; the messages belong to the caller. */
#include "engine/text/reply/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the template wants ----------------------------------------------------------------- */

#define SHORT_ID "callA0001"
#define LONG_ID  "call_A00012345678901234567890"

/* A conversation with a call and its result. */
static json_t *conversation(const struct eng_template *t, const char *id)
{
    json_t *arguments = eng_template_text_arguments(t) ? json_string("{\"k\": \"v\"}")
                                                       : json_pack("{s:s}", "k", "v");
    return json_pack("[{s:s, s:s}, {s:s, s:s, s:[{s:s, s:s, s:{s:s, s:o}}]}, {s:s, s:s, s:s, s:s}]",
                     "role", "user", "content", "x", "role", "assistant", "content", "",
                     "tool_calls", "id", id, "type", "function", "function", "name", "probe_f",
                     "arguments", arguments, "role", "tool", "tool_call_id", id, "name", "probe_f",
                     "content", "y");
}

static json_t *tools(void)
{
    return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s}}}}}]", "type", "function", "function",
                     "name", "probe_f", "description", "x", "parameters", "type", "object",
                     "properties", "k", "type", "string");
}

struct found { bool call, id; /* it is in what was rendered */ };

/* CN_ENOMEM; any other failure is the template's answer: nothing is found. */
static int probe(const struct eng_template *t, const char *id, struct found *out)
{
    json_t *messages = conversation(t, id), *offered = tools();
    struct eng_template_in in = {.messages = messages,
                                 .tools = offered,
                                 .bos_token = {"", 0},
                                 .eos_token = {"", 0},
                                 .limits = {.max_steps = 50000,
                                            .max_output_bytes = 1 << 20,
                                            .max_memory_bytes = 8 << 20,
                                            .max_ns = 250000000}};
    struct eng_rendered r = {0};
    int rc = messages && offered ? eng_template_render(t, &in, &r, NULL) : CN_ENOMEM;

    *out = (struct found){0};
    json_decref(messages);
    json_decref(offered);
    if (rc) return rc == CN_ENOMEM ? rc : 0;
    struct eng_str s = eng_str_of(&r.text);
    const char *call = memmem(s.p, s.n, "probe_f", 7); /* among the tools, if it takes any */
    size_t rest = call ? s.n - (size_t)(call + 7 - s.p) : 0;
    out->call = call && (!eng_template_takes_tools(t) || memmem(call + 7, rest, "probe_f", 7));
    out->id = memmem(s.p, s.n, id, strlen(id));
    eng_rendered_fini(&r);
    return 0;
}

int eng_history_learn(const struct eng_template *t, const struct eng_reply_format *f,
                      struct eng_history *out)
{
    struct found with_short, with_long;
    int rc = probe(t, SHORT_ID, &with_short);
    if (!rc) rc = probe(t, LONG_ID, &with_long);
    if (rc) return rc;
    *out = (struct eng_history){.by_order = with_short.call && !with_short.id};
    if (f->form && !strcmp(f->form->name, "kimi-k2"))
        *out = (struct eng_history){ENG_IDS_KIMI, true};
    else if (with_short.call && !with_long.call)
        out->ids = ENG_IDS_NINE;
    return 0;
}

/* ---- ids ------------------------------------------------------------------------------------- */

struct ids {
    const struct eng_history *h;
    json_t *map;   /* an id of the client -> its id for the template */
    json_t *taken; /* ids for the template that are in use */
    size_t n;      /* calls so far */
};

static bool is_nine(const char *s, size_t n)
{
    return n == 9 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == 9;
}

/* Nine letters and digits that depend on the id alone, unless another one has them. */
static void make_nine(const struct ids *ids, const char *id, size_t n, char out[10])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    uint8_t key[16] = "calls of tools.";
    do {
        uint64_t h = cn_siphash13(key, id, n);
        for (size_t i = 0; i < 9; i++, h /= 62)
            out[i] = letters[h % 62];
        out[9] = 0;
        key[15]++;
    } while (json_object_get(ids->taken, out));
}

/* The id of a call, or the one that its result names; call: the name of a call that is new here. */
static int map_id(struct ids *ids, json_t *owner, const char *key, const char *call)
{
    const json_t *given = json_object_get(owner, key);
    const char *id = json_string_value(given);
    size_t n = json_string_length(given);
    char made[320];
    json_t *to = id ? json_object_getn(ids->map, id, n) : NULL;

    if (ids->h->ids == ENG_IDS_ANY) return 0;
    if (to && (!call || ids->h->ids == ENG_IDS_NINE))
        return json_object_set(owner, key, to) ? CN_ENOMEM : 0;
    if (!call && (!id || ids->h->ids == ENG_IDS_KIMI)) return 0; /* a result of no call */
    if (ids->h->ids == ENG_IDS_KIMI) {
        snprintf(made, sizeof made, "functions.%.256s:%zu", call, ids->n);
    } else if (id && is_nine(id, n)) {
        return 0;
    } else {
        char number[32];
        snprintf(number, sizeof number, "%zu", ids->n);
        make_nine(ids, id ? id : number, id ? n : strlen(number), made);
    }
    to = json_string(made);
    int rc = !to || json_object_set(ids->taken, made, to) ||
             (id && json_object_setn(ids->map, id, n, to)) || json_object_set(owner, key, to);
    json_decref(to);
    return rc ? CN_ENOMEM : 0;
}

/* Ids that fit already stay, and no other call gets one of them. */
static int keep_nines(struct ids *ids, const json_t *messages)
{
    const json_t *m, *call;
    size_t i, k;
    json_array_foreach(messages, i, m)
    {
        json_array_foreach(json_object_get(m, "tool_calls"), k, call)
        {
            const json_t *id = json_object_get(call, "id");
            if (!is_nine(json_string_value(id) ? json_string_value(id) : "",
                         json_string_length(id)))
                continue;
            if (json_object_set_new(ids->taken, json_string_value(id), json_true()))
                return CN_ENOMEM;
        }
    }
    return 0;
}

/* ---- results --------------------------------------------------------------------------------- */

static bool is_role(const json_t *m, const char *role)
{
    const char *s = json_string_value(json_object_get(m, "role"));
    return s && !strcmp(s, role);
}

/* An object with the calls' indexes by their ids; NULL: memory is out. */
static json_t *places_of(const json_t *calls)
{
    json_t *places = json_object();
    const json_t *call;
    size_t k;
    json_array_foreach(calls, k, call)
    {
        const json_t *id = json_object_get(call, "id");
        if (!places || !json_is_string(id)) continue;
        if (json_object_setn_new(places, json_string_value(id), json_string_length(id),
                                 json_integer((json_int_t)k))) {
            json_decref(places);
            places = NULL;
        }
    }
    return places;
}

/* Results from message `from` on are put into the order of the calls, if each call has at most one
 * there: the template has nothing else to tell which is which. */
static int order_results(json_t *messages, size_t from, const json_t *calls)
{
    size_t n_calls = json_array_size(calls), n = 0;
    while (is_role(json_array_get(messages, from + n), "tool"))
        n++;
    if (n < 2 || n > n_calls) return 0;
    json_t *places = places_of(calls), **sorted = cn_calloc(n_calls, sizeof *sorted);
    bool known = true;
    for (size_t i = 0; places && sorted && known && i < n; i++) {
        json_t *m = json_array_get(messages, from + i);
        const json_t *id = json_object_get(m, "tool_call_id");
        const json_t *place = json_is_string(id) ? json_object_getn(places, json_string_value(id),
                                                                    json_string_length(id))
                                                 : NULL;
        known = place && !sorted[json_integer_value(place)];
        if (known) sorted[json_integer_value(place)] = m;
    }
    int rc = places && sorted ? 0 : CN_ENOMEM;
    for (size_t k = 0; !rc && known && k < n_calls; k++)
        if (sorted[k]) json_incref(sorted[k]); /* setting one drops another */
    for (size_t k = 0, at = from; !rc && known && k < n_calls; k++)
        if (sorted[k]) json_array_set_new(messages, at++, sorted[k]);
    json_decref(places);
    free(sorted);
    return rc;
}

/* ---- messages -------------------------------------------------------------------------------- */

static bool is_call(const json_t *call)
{
    return json_is_string(json_object_get(json_object_get(call, "function"), "name"));
}

static int prepare_calls(struct ids *ids, json_t *calls)
{
    json_t *call;
    size_t k;
    int rc = 0;
    json_array_foreach(calls, k, call)
    {
        const json_t *name = json_object_get(json_object_get(call, "function"), "name");
        if (!is_call(call)) continue;
        if (!rc) rc = map_id(ids, call, "id", json_string_value(name));
        ids->n++;
    }
    return rc;
}

int eng_history_prepare(const struct eng_history *h, json_t *messages, struct cn_error *err)
{
    struct ids ids = {.h = h, .map = json_object(), .taken = json_object()};
    json_t *m;
    size_t i;
    int rc = ids.map && ids.taken ? 0 : CN_ENOMEM;

    if (!rc && h->ids == ENG_IDS_NINE) rc = keep_nines(&ids, messages);
    json_array_foreach(messages, i, m)
    {
        json_t *calls = json_object_get(m, "tool_calls");
        if (rc) break;
        if (is_role(m, "tool")) {
            rc = map_id(&ids, m, "tool_call_id", NULL);
        } else if (json_is_array(calls)) {
            if (h->by_order) rc = order_results(messages, i + 1, calls);
            if (!rc) rc = prepare_calls(&ids, calls);
        }
    }
    json_decref(ids.map);
    json_decref(ids.taken);
    return rc ? cn_fail(err, CN_ENOMEM, "out of memory") : 0;
}

size_t eng_history_calls(const json_t *messages)
{
    const json_t *m, *call;
    size_t i, k, n = 0;
    json_array_foreach(messages, i, m) json_array_foreach(json_object_get(m, "tool_calls"), k, call)
        n += is_call(call);
    return n;
}
