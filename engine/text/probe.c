/* What a chat template does with messages, learnt when it is compiled by rendering small
 * conversations. All of them share one budget of steps and half a second, so that a hostile
 * template does not make a model slow to load; what was not learnt by then is set so that messages
 * are left as they came. Each rendering of an ordinary template is done before the interpreter
 * first looks at the clock, so that the result does not depend on the machine's load. */
#include "engine/text/jinja/ast.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { STEPS = 100000 };

/* Words that no template has of itself. */
#define MARK_A "Qzvxalpha"
#define MARK_B "Qzvxbravo"
#define MARK_C "Qzvxcharlie"

struct prober {
    const struct eng_template *t;
    struct eng_jbudget budget;
    json_t *tools;      /* NULL, or one tool: some templates need tools to render anything */
    struct cn_buf text; /* of the last rendering */
    bool rendered;      /* false: the template refused that conversation */
    int rc;             /* once set, nothing more is rendered */
};

/* Renders the messages, which it takes; NULL: memory is out. True if the template rendered them. */
static bool render(struct prober *p, json_t *messages)
{
    struct eng_template_in in = {
        .messages = messages,
        .tools = p->tools,
        .bos_token = {"", 0},
        .eos_token = {"", 0},
        .limits = {.max_output_bytes = 1 << 20, .max_memory_bytes = 8 << 20, .max_ns = 500000000}};
    struct eng_rendered r = {0};
    int rc = p->rc;

    p->rendered = false;
    cn_buf_fini(&p->text);
    cn_buf_init(&p->text, 0);
    if (!rc && !messages) rc = CN_ENOMEM;
    if (!rc) rc = eng_j_render(p->t, &in, &p->budget, &r, NULL);
    json_decref(messages);
    if (!rc) {
        p->text = r.text; /* moved */
        cn_buf_init(&r.text, 0);
        eng_rendered_fini(&r);
        p->rendered = true;
    }
    if (rc == CN_ENOMEM || rc == CN_ELIMIT) p->rc = rc;
    return p->rendered;
}

/* Where the word is in the last rendering, from `from` on; SIZE_MAX: it is not there. */
static size_t find(const struct prober *p, const char *word, size_t from)
{
    if (!p->rendered || from >= p->text.len) return SIZE_MAX;
    char *at = memmem(p->text.data + from, p->text.len - from, word, strlen(word));
    return at ? (size_t)(at - p->text.data) : SIZE_MAX;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* A conversation with a call. Takes content, arguments and result. */
static json_t *with_call(json_t *content, json_t *arguments, json_t *result)
{
    return json_pack("[{s:s, s:s}, {s:s, s:o, s:[{s:s, s:s, s:{s:s, s:o}}]}, {s:s, s:s, s:s, s:o}]",
                     "role", "user", "content", "x", "role", "assistant", "content", content,
                     "tool_calls", "id", "call00001", "type", "function", "function", "name", "f",
                     "arguments", arguments, "role", "tool", "tool_call_id", "call00001", "name",
                     "f", "content", result);
}

/* The arguments of a call without meaning, in the form that the template wants. */
static json_t *no_arguments(const struct prober *p)
{
    return p->t->text_arguments ? json_string("{}") : json_object();
}

static bool takes_user_after_result(struct prober *p)
{
    json_t *messages = with_call(json_string(""), no_arguments(p), json_string("x"));
    json_t *user = json_pack("{s:s, s:s}", "role", "user", "content", MARK_A);

    if (json_array_append_new(messages, user)) p->rc = CN_ENOMEM;
    render(p, messages);
    return find(p, MARK_A, 0) != SIZE_MAX;
}

/* Most clients send null as the content of a message with calls. Most templates want an empty
 * string instead: with null they fail or write "None". A few (DeepSeek's first ones) test for
 * null, and for a string write an extra turn without text. Those are the templates that write
 * less for null than for "". */
static bool wants_null(struct prober *p)
{
    render(p, with_call(json_null(), no_arguments(p), json_string("x")));
    size_t null_len = p->rendered ? p->text.len : SIZE_MAX;
    render(p, with_call(json_string(""), no_arguments(p), json_string("x")));
    return !p->rc && null_len < (p->rendered ? p->text.len : SIZE_MAX);
}

/* Whether the last rendering has the call of learn_calls and its result. */
static bool has_call(const struct prober *p)
{
    return find(p, MARK_B, 0) != SIZE_MAX && find(p, MARK_C, 0) != SIZE_MAX;
}

/* Arguments are text if the template refuses an object or writes Python's form of it, and writes
 * the text as it is. They are text also if it writes both alike: clients send text, and only text
 * keeps the spaces and the digits that the model wrote, on which the next prompt's cached prefix
 * depends. */
static void learn_calls(struct prober *p, struct eng_template *t)
{
    static const char json[] = "{\"" MARK_A "\": \"" MARK_B "\"}";

    render(p, with_call(json_string(""), json_pack("{s:s}", MARK_A, MARK_B), json_string(MARK_C)));
    bool object = has_call(p) && find(p, "'" MARK_A "'", 0) == SIZE_MAX;
    struct cn_buf with_object = p->text;
    cn_buf_init(&p->text, 0);
    render(p, with_call(json_string(""), json_string(json), json_string(MARK_C)));
    t->calls = object || has_call(p);
    t->text_arguments = find(p, json, 0) != SIZE_MAX;
    if (object && t->text_arguments)
        t->text_arguments = with_object.len == p->text.len &&
                            !memcmp(with_object.data, p->text.data, with_object.len);
    cn_buf_fini(&with_object);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* A conversation with this content, which it takes, in a message of this role. */
static json_t *with_content(const struct prober *p, enum eng_role role, json_t *content)
{
    switch (role) {
    case ENG_SYSTEM:
        return json_pack("[{s:s, s:o}, {s:s, s:s}]", "role", "system", "content", content, "role",
                         "user", "content", "x");
    case ENG_ASSISTANT:
        return json_pack("[{s:s, s:s}, {s:s, s:o}, {s:s, s:s}]", "role", "user", "content", "x",
                         "role", "assistant", "content", content, "role", "user", "content", "x");
    case ENG_TOOL:
        return with_call(json_string(""), no_arguments(p), content);
    default:
        return json_pack("[{s:s, s:o}]", "role", "user", "content", content);
    }
}

static bool has_any(const char *s, size_t n, const char *const *words)
{
    for (; *words; words++)
        if (n && memmem(s, n, *words, strlen(*words))) return true;
    return false;
}

/* The bytes next to the text from `from` to `to`; 0 where there are none. */
static void neighbours(const struct prober *p, size_t from, size_t to, char out[2])
{
    out[0] = from ? p->text.data[from - 1] : '\0';
    out[1] = to < p->text.len ? p->text.data[to] : '\0';
}

static bool is_quote(char c)
{
    return c == '\'' || c == '"';
}

/* The list must come out as its texts, in order. Many templates print the list itself, in Python's
 * form or as JSON: then there is the name of a member between the texts. Other quotes and braces
 * belong to the template only if it writes them around a string as well. */
static bool takes_parts(struct prober *p, enum eng_role role)
{
    static const char *const members[] = {"'text'", "\"text\"", "'type'", "\"type\"", NULL};
    static const char *const quotes[] = {"'", "\"", "{", "}", "[", "]", NULL};
    char list[2], string[2];

    render(p, with_content(p, role,
                           json_pack("[{s:s, s:s}, {s:s, s:s}]", "type", "text", "text", MARK_A,
                                     "type", "text", "text", MARK_B)));
    size_t a = find(p, MARK_A, 0);
    size_t b = a == SIZE_MAX ? a : find(p, MARK_B, a);
    if (b == SIZE_MAX) return false;
    size_t end_a = a + strlen(MARK_A), end_b = b + strlen(MARK_B);
    const char *between = p->text.data + end_a;
    if (has_any(between, b - end_a, members)) return false;
    bool quoted = has_any(between, b - end_a, quotes);
    neighbours(p, a, end_b, list);
    if (!quoted && !is_quote(list[0]) && !is_quote(list[1])) return true;
    render(p, with_content(p, role, json_string(MARK_A)));
    a = find(p, MARK_A, 0);
    if (a == SIZE_MAX) return false;
    neighbours(p, a, a + strlen(MARK_A), string);
    return !memcmp(list, string, sizeof list);
}

/* ---- system and developer -------------------------------------------------------------------- */

static json_t *begun_by(const char *role)
{
    return json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", role, "content", MARK_A, "role", "user",
                     "content", "x");
}

/* Whether two texts are the same but for the names a and b, of equal length, in any case. */
static bool same_but(const struct cn_buf *x, const struct cn_buf *y, const char *a, const char *b)
{
    size_t n = strlen(a);

    if (x->len != y->len) return false;
    for (size_t i = 0; i < x->len;) {
        if (i + n <= x->len && !strncasecmp(x->data + i, a, n) && !strncasecmp(y->data + i, b, n))
            i += n;
        else if (x->data[i] != y->data[i])
            return false;
        else
            i++;
    }
    return true;
}

/* Many templates print the name of any role. That the model was trained with one shows only where
 * the template treats it in another way than a role that does not exist. */
static bool knows_developer(struct prober *p)
{
    static const char name[] = "developer", odd[] = "qzvxlepor";

    render(p, begun_by(name));
    if (find(p, MARK_A, 0) == SIZE_MAX) return false;
    struct cn_buf known = p->text;
    cn_buf_init(&p->text, 0);
    render(p, begun_by(odd));
    bool knows = !p->rendered || !same_but(&known, &p->text, name, odd);
    cn_buf_fini(&known);
    return !p->rc && knows;
}

static bool takes_systems(struct prober *p)
{
    render(p, json_pack("[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}, {s:s, s:s}, {s:s, s:s}, {s:s, s:s}]",
                        "role", "system", "content", MARK_A, "role", "system", "content", MARK_B,
                        "role", "user", "content", "x", "role", "assistant", "content", "x", "role",
                        "system", "content", MARK_C, "role", "user", "content", "x"));
    size_t a = find(p, MARK_A, 0);
    size_t b = a == SIZE_MAX ? a : find(p, MARK_B, a);
    return b != SIZE_MAX && find(p, MARK_C, b) != SIZE_MAX;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Whether the template renders the simplest conversation. Some need tools to render anything. */
static bool renders(struct prober *p)
{
    if (render(p, with_content(p, ENG_USER, json_string("x"))) || p->rc) return p->rendered;
    p->tools =
        json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{}}}}]", "type", "function", "function", "name",
                  "f", "description", "x", "parameters", "type", "object", "properties");
    if (!p->tools) p->rc = CN_ENOMEM;
    if (render(p, with_content(p, ENG_USER, json_string("x")))) return true;
    json_decref(p->tools);
    p->tools = NULL;
    return false;
}

static void learn_systems(struct prober *p, struct eng_template *t)
{
    render(p, begun_by("system"));
    t->system = find(p, MARK_A, 0) != SIZE_MAX;
    t->systems = t->system && takes_systems(p);
    t->developer = knows_developer(p);
}

int eng_j_probe(struct eng_template *t)
{
    struct prober p = {.t = t, .budget = {.steps = STEPS, .started_ns = cn_now_ns()}};

    cn_buf_init(&p.text, 0);
    bool usual = renders(&p);
    learn_calls(&p, t);
    t->null_content = wants_null(&p);
    t->user_after_result = takes_user_after_result(&p);
    if (usual) learn_systems(&p, t);
    for (int role = 0; role < ENG_N_ROLES; role++)
        t->parts[role] = takes_parts(&p, (enum eng_role)role);
    if (!usual || p.rc) t->system = t->systems = t->developer = t->user_after_result = true;
    json_decref(p.tools);
    cn_buf_fini(&p.text);
    return p.rc == CN_ENOMEM ? CN_ENOMEM : 0;
}
