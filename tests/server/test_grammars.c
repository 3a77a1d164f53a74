/* Kept grammars: paid for until the last reference is gone, given up where memory is short. */
#include "server/grammars.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define COST 100 /* of each grammar here, not what it really takes */

struct world {
    struct cn_budget *budget;
    struct cn_account *first, *second;
    struct srv_grammars *g;
};

/* Reserves of 1,000 each, 2,000 lent. */
static struct world make(void)
{
    struct cn_share shares[] = {{1, true}, {1, true}};
    struct world w;

    assert_int_equal(cn_budget_new(4000, shares, 2, &w.budget), 0);
    w.first = cn_budget_account(w.budget, 0);
    w.second = cn_budget_account(w.budget, 1);
    assert_int_equal(srv_grammars_new(w.budget, &w.g), 0);
    return w;
}

static void end(struct world *w)
{
    srv_grammars_free(w->g);
    assert_int_equal(cn_budget_held(w->budget), 0);
    cn_budget_free(w->budget);
}

static struct srv_grammar_key key_of(uint64_t tenant, int i)
{
    struct srv_grammar_key key = {.tenant = tenant};

    memcpy(key.digest, &i, sizeof i);
    return key;
}

/* Keeps one. Returns a reference for the caller. */
static struct eng_grammar *add(struct world *w, uint64_t tenant, int i)
{
    struct cn_account *account = tenant ? w->second : w->first;
    struct srv_grammar_key key = key_of(tenant, i);
    struct eng_grammar_in in = {.kind = ENG_GRAMMAR_REGEX, .text = "a*b", .n = 3};
    struct eng_grammar *g = NULL;
    struct cn_error err;

    assert_int_equal(cn_account_take(account, COST), 0);
    assert_int_equal(eng_grammar_compile(&in, &g, &err), 0);
    eng_grammar_paid(g, account, COST);
    assert_int_equal(eng_grammar_cost(g), COST);
    srv_grammars_keep(w->g, &key, g, account);
    return g;
}

static bool is_kept(struct world *w, uint64_t tenant, int i)
{
    struct srv_grammar_key key = key_of(tenant, i);
    struct eng_grammar *g = srv_grammars_find(w->g, &key);

    eng_grammar_unref(g);
    return g != NULL;
}

static void one_that_is_used_is_paid_for(void **state)
{
    struct world w = make();
    struct eng_grammar *used = add(&w, 0, 1);

    assert_true(eng_grammar_shared(used));
    assert_int_equal(srv_grammars_bytes(w.g), COST);
    srv_grammars_drop(w.g, 0);
    assert_false(is_kept(&w, 0, 1));
    assert_int_equal(srv_grammars_bytes(w.g), 0);
    assert_int_equal(cn_account_held(w.first), COST);
    eng_grammar_unref(used);
    assert_int_equal(cn_account_held(w.first), 0);
    end(&w);
}

/* The tenant may hold 2,000: 1,000 of its own, 1,000 borrowed. */
static void the_oldest_in_no_use_give_way(void **state)
{
    struct world w = make();
    struct eng_grammar *used = add(&w, 0, 0);

    for (int i = 1; i < 10; i++)
        eng_grammar_unref(add(&w, 0, i));
    eng_grammar_unref(add(&w, 1, 1));
    assert_int_equal(srv_grammars_bytes(w.g), 11 * COST);
    assert_true(is_kept(&w, 0, 1)); /* and is the newest now */
    assert_int_equal(cn_account_take(w.first, 1000), 0);
    assert_int_equal(srv_grammars_bytes(w.g), 11 * COST);
    assert_int_equal(cn_account_take(w.first, 150), 0);
    assert_true(is_kept(&w, 0, 0) && is_kept(&w, 0, 1) && is_kept(&w, 1, 1));
    assert_false(is_kept(&w, 0, 2) || is_kept(&w, 0, 3));
    assert_int_equal(srv_grammars_bytes(w.g), 9 * COST);
    assert_int_equal(cn_account_take(w.first, 751),
                     CN_EHELD); /* not even with all but the used one */
    assert_int_equal(srv_grammars_bytes(w.g), 2 * COST);
    assert_true(is_kept(&w, 0, 0) && is_kept(&w, 1, 1));
    assert_int_equal(cn_account_take(w.first, 750), 0);
    cn_account_give(w.first, 1900);
    eng_grammar_unref(used);
    end(&w);
}

/* Kept grammars of a tenant that borrows give way to another tenant; those within its own part
 * stay. */
static void others_have_what_was_borrowed(void **state)
{
    struct world w = make();

    for (int i = 0; i < 14; i++)
        eng_grammar_unref(add(&w, 0, i)); /* 400 of it borrowed */
    assert_int_equal(cn_account_take(w.second, 1900),
                     0); /* 900 borrowed, which must leave as much */
    assert_int_equal(srv_grammars_bytes(w.g), 12 * COST);
    assert_false(is_kept(&w, 0, 0) || is_kept(&w, 0, 1));
    assert_int_equal(cn_account_take(w.second, 100), 0);
    assert_int_equal(srv_grammars_bytes(w.g), 10 * COST);
    cn_account_give(w.second, 2000);
    end(&w);
}

static void a_tenant_keeps_so_many(void **state)
{
    struct cn_share share = {1, true};
    struct world w;

    assert_int_equal(cn_budget_new(1 << 20, &share, 1, &w.budget), 0);
    w.first = cn_budget_account(w.budget, 0);
    assert_int_equal(srv_grammars_new(w.budget, &w.g), 0);
    for (int i = 0; i < SRV_GRAMMARS_MOST + 3; i++)
        eng_grammar_unref(add(&w, 0, i));
    assert_int_equal(srv_grammars_bytes(w.g), SRV_GRAMMARS_MOST * COST);
    assert_int_equal(cn_account_held(w.first), SRV_GRAMMARS_MOST * COST);
    assert_false(is_kept(&w, 0, 2));
    assert_true(is_kept(&w, 0, 3));
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_is_used_is_paid_for),
        cmocka_unit_test(the_oldest_in_no_use_give_way),
        cmocka_unit_test(others_have_what_was_borrowed),
        cmocka_unit_test(a_tenant_keeps_so_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
