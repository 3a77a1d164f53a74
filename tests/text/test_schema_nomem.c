/* Allocation failures: compiling schemas with the k-th allocation failing, for every k: CN_ENOMEM,
 * nothing leaked (the sanitizer build sees that), and as before once memory is there again. */
#include "engine/text/grammar/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static long countdown = -1; /* allocations until one fails; -1 = never */

static bool alloc_fails(void)
{
    return countdown >= 0 && countdown-- == 0;
}

#include "tests/wrap_alloc.h"

/* Every part of the compiler has something to do here. */
static const char schema_text[] =
    "{\"$id\":\"http://a/b\",\"$defs\":{\"n\":{\"$anchor\":\"n\",\"type\":[\"object\",\"n"
    "ull\"],\"properties\":{\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#n\"},\"uniqu"
    "eItems\":true},\"k\":{\"enum\":[\"x\",\"y\",3]}},\"required\":[\"k\"],\"if\":{\"prop"
    "erties\":{\"k\":{\"const\":\"x\"}}},\"then\":{\"required\":[\"u\"]},\"patternPropert"
    "ies\":{\"^p\":{\"minimum\":1.5}},\"propertyNames\":{\"maxLength\":4},\"dependentRequ"
    "ired\":{\"u\":[\"v\"]}}},\"anyOf\":[{\"$ref\":\"b#/$defs/n\",\"unevaluatedProperties"
    "\":false},{\"type\":\"array\",\"contains\":{\"const\":[1,{\"a\":null}]},\"prefixItem"
    "s\":[{\"type\":\"string\",\"pattern\":\"^a+$\",\"format\":\"date\"}]},{\"type\":\"ob"
    "ject\",\"oneOf\":[{\"required\":[\"w\"]},{\"properties\":{\"z\":{\"const\":{\"q\":2}"
    "}},\"required\":[\"z\"]}]}]}";

static int work(json_t *schema, struct cn_error *err)
{
    static const struct eng_schema_opts opts = {0};
    struct eng_sym root;
    struct eng_ir ir;
    int rc = eng_ir_init(&ir, ENG_SPELL_JSON, 64u << 20, 20000000);
    if (rc) return rc;
    rc = eng_schema_compile(&ir, schema, &opts, &root, err);
    cn_assert(rc || !eng_sym_never(root));
    eng_ir_fini(&ir);
    return rc;
}

static void every_allocation_fails_once(void **state)
{
    json_t *schema = json_loads(schema_text, 0, NULL);
    struct cn_error err = {0};
    assert_non_null(schema);
    assert_int_equal(work(schema, &err), 0);
    bool reached = true;
    long k = 0, unneeded = 0; /* some only make things faster */
    for (; reached; k++) {
        err = (struct cn_error){0};
        countdown = k;
        int rc = work(schema, &err);
        reached = countdown < 0;
        countdown = -1;
        if (rc == 0 && reached)
            unneeded++;
        else
            assert_int_equal(rc, reached ? CN_ENOMEM : 0);
    }
    assert_true(k > 100 && unneeded * 10 < k);
    json_decref(schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_fails_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
