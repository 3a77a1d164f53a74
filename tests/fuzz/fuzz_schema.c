/* Fuzz target of JSON Schema: the bytes up to the first NUL are a schema, the rest is a value.
 * Compiling ends, in an error with a message or a grammar that has a text. Where the schema and its
 * negation both compile, the value belongs to one of the two grammars and not to the other. */
#include "tests/text/schema_walk.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* 1: the value satisfies the schema, 0: it does not, -1: the schema is refused. */
static int satisfies(json_t *schema, const json_t *value)
{
    static const struct eng_schema_opts opts = {.any_order = true};
    struct cn_error err = {0};
    struct eng_sym root;
    struct eng_ir ir;
    int out = -1;
    if (eng_ir_init(&ir, ENG_SPELL_JSON_ANY, 4u << 20, 200000)) return -1;
    int rc = eng_schema_compile(&ir, schema, &opts, &root, &err);
    cn_assert(rc == err.code);
    cn_assert(!rc || err.message[0]);
    if (rc == CN_EINVAL && strcmp(err.message, "no value satisfies the schema") == 0) out = 0;
    if (!rc) {
        rc = eng_ir_finish(&ir, root, &err);
        cn_assert(rc != CN_EINVAL); /* it said that there are values */
        if (!rc) out = walk_has(&ir, value);
        if (ir.rx.code) out = -1;
    }
    eng_ir_fini(&ir);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = memchr(data, 0, size);
    size_t n = nul ? (size_t)(nul - data) : size, flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *schema = json_loadb((const char *)data, n, flags, NULL), *value = NULL;
    if (schema && nul) value = json_loadb((const char *)nul + 1, size - n - 1, flags, NULL);
    if (!value) value = json_pack("{s:[i,n],s:{}}", "a", 1, "b");
    if (schema) {
        /* With an $id of its own a schema means the same inside of another one. */
        if (json_is_object(schema) && !json_object_get(schema, "$id"))
            json_object_set_new(schema, "$id", json_string("urn:x"));
        json_t *negation = json_pack("{s:O}", "not", schema);
        int yes = satisfies(schema, value), no = satisfies(negation, value);
        cn_assert(yes < 0 || no < 0 || yes != no);
        json_decref(negation);
    }
    json_decref(schema);
    json_decref(value);
    return 0;
}
