/* Fuzz target: scenarios of the load generator, the rules between their keys, one key set from
 * text, addresses. */
#include "loadtest/run.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* What any accepted scenario must allow: drawing requests, and no length out of its bounds. */
static void check_draws(const struct lt_scenario *s)
{
    struct cn_buf body;

    for (size_t i = 0; i < s->n_classes; i++) {
        const struct lt_class *c = &s->classes[i];
        struct lt_shape shape;

        cn_assert(c->name[0] && c->clients >= 1 && c->prefix_groups >= 1 &&
                  c->ids_from < c->ids_to);
        cn_assert(c->prompt != LT_PROMPT_AUTO && c->split < (int)s->n_classes);
        lt_shape_draw(s, i, 3, false, 1, &shape);
        cn_assert(shape.prompt_tokens >= 1 && shape.prompt_tokens <= 10000000);
        cn_assert(shape.answer_tokens >= 1 && shape.abort_events >= 1);
        cn_assert(!s->n_tenants || shape.tenant < s->n_tenants);
        if (shape.prompt_tokens > 1000 || c->prefix_tokens > 1000) continue;
        cn_buf_init(&body, 0);
        lt_body(s, i, 3, false, 1, "m", &shape, &body);
        cn_assert(!body.failed && body.data[body.len - 1] == '}');
        cn_buf_fini(&body);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct lt_scenario s;
    struct lt_target target;
    struct cn_error err = {0};
    char *text;

    cn_assert(lt_scenario_init(&s, &err) == CN_OK);
    int rc = lt_scenario_load_text(&s, "fuzz.yaml", (const char *)data, n, &err);
    cn_assert(rc == err.code && (rc != 0) == (err.message[0] != '\0'));
    if (!rc) {
        rc = lt_scenario_check(&s, &err);
        cn_assert((rc != 0) == (err.message[0] != '\0'));
        if (!rc) check_draws(&s);
    }
    lt_scenario_fini(&s);
    cn_assert(lt_scenario_init(&s, NULL) == CN_OK);
    text = strndup((const char *)data, n);
    if (text) {
        char *equals = strchr(text, '=');

        (void)lt_target_parse(text, &target, NULL);
        if (equals) {
            *equals = '\0';
            (void)lt_scenario_set(&s, NULL, text, equals + 1, NULL);
        }
    }
    free(text);
    lt_scenario_fini(&s);
    return 0;
}
