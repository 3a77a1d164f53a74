/* base/account.c: reserves, what is lent, the three refusals, buffers that an account pays for. */
#include "base/base.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct cn_budget *make(uint64_t bytes, const struct cn_share *shares, size_t n)
{
    struct cn_budget *b;

    assert_int_equal(cn_budget_new(bytes, shares, n, &b), 0);
    return b;
}

static void one_account_takes_all_that_there_is(void **state)
{
    struct cn_budget *b = make(1000, (struct cn_share[]){{1, true}}, 1);
    struct cn_account *a = cn_budget_account(b, 0);

    assert_int_equal(cn_account_most(a), 1000);
    assert_int_equal(cn_account_take(a, 1001), CN_ETOOLARGE);
    assert_int_equal(cn_account_take(a, 600), 0);
    assert_int_equal(cn_account_take(a, 401), CN_EHELD);
    assert_int_equal(cn_account_take(a, 400), 0);
    assert_int_equal(cn_budget_held(b), 1000);
    cn_account_give(a, 1000);
    cn_budget_free(b);
}

/* Reserves of 100 and 400, 500 lent: the first may hold 100 + 250. */
static void nobody_takes_another_ones_reserve(void **state)
{
    struct cn_budget *b = make(1000, (struct cn_share[]){{1, true}, {4, true}}, 2);
    struct cn_account *small = cn_budget_account(b, 0), *large = cn_budget_account(b, 1);

    assert_int_equal(cn_account_take(small, 351), CN_ETOOLARGE);
    assert_int_equal(cn_account_take(small, 350), 0);
    assert_int_equal(cn_account_take(small, 1), CN_EHELD);
    assert_int_equal(cn_account_take(large, 400), 0);
    assert_int_equal(cn_account_take(large, 125), 0); /* half of the 250 that are left */
    assert_int_equal(cn_account_take(large, 1), CN_EFULL);
    cn_account_give(small, 300);
    assert_int_equal(cn_account_take(large, 125), 0);
    cn_account_give(small, 50);
    cn_account_give(large, 650);
    assert_int_equal(cn_budget_held(b), 0);
    cn_budget_free(b);
}

static void who_may_not_borrow_has_its_reserve(void **state)
{
    struct cn_budget *b = make(1000, (struct cn_share[]){{4, true}, {1, false}}, 2);
    struct cn_account *a = cn_budget_account(b, 0), *none = cn_budget_account(b, 1);

    assert_int_equal(cn_account_most(none), 100);
    assert_int_equal(cn_account_most(a), 900); /* the only one that borrows */
    assert_int_equal(cn_account_take(a, 900), 0);
    assert_int_equal(cn_account_take(none, 100), 0);
    cn_account_give(a, 900);
    cn_account_give(none, 100);
    cn_budget_free(b);
}

static void a_hundred_that_take_all_they_can_leave_each_its_reserve(void **state)
{
    struct cn_share shares[100];
    for (size_t i = 0; i < 100; i++)
        shares[i] = (struct cn_share){1, true};
    struct cn_budget *b = make(100 << 20, shares, 100);

    for (size_t i = 0; i < 99; i++) {
        while (!cn_account_take(cn_budget_account(b, i), 4096)) {
        }
        assert_true(cn_budget_held(b) <= 100u << 20);
    }
    assert_int_equal(cn_account_take(cn_budget_account(b, 99), 512 << 10), 0);
    for (size_t i = 0; i < 100; i++) {
        struct cn_account *a = cn_budget_account(b, i);
        cn_account_give(a, cn_account_held(a));
    }
    cn_budget_free(b);
}

static void a_buffer_is_paid_for_before_it_grows(void **state)
{
    struct cn_budget *b = make(10000, (struct cn_share[]){{1, true}, {1, true}}, 2);
    struct cn_account *a = cn_budget_account(b, 0), *other = cn_budget_account(b, 1);
    char text[4000] = {0};
    struct cn_buf buf;

    cn_buf_init_for(&buf, 0, a); /* 2500 + 2500 */
    assert_int_equal(cn_buf_append(&buf, text, 3000), 0);
    assert_int_equal(cn_account_held(a), buf.cap);
    assert_int_equal(cn_buf_append(&buf, text, 1999), 0); /* doubling does not fit, this does */
    assert_int_equal(buf.cap, 4999);
    assert_int_equal(cn_buf_append(&buf, text, 3000), CN_EHELD);
    assert_int_equal(cn_buf_code(&buf), CN_EHELD);
    assert_int_equal(cn_buf_append(&buf, text, 1),
                     CN_EHELD); /* bytes are missing: nothing follows */
    assert_int_equal(buf.len, 4999);
    assert_int_equal(cn_buf_rebill(&buf, other), CN_EFULL); /* for a moment both would hold it */
    assert_int_equal(cn_buf_rebill(&buf, NULL), 0);
    assert_int_equal(cn_account_held(a), 0);
    assert_int_equal(cn_buf_rebill(&buf, other), 0);
    assert_int_equal(cn_account_held(other), 4999);
    assert_int_equal(cn_account_take(a, 1250), 0);
    cn_account_give(a, 1250);
    cn_buf_fini(&buf);
    assert_int_equal(cn_budget_held(b), 0);
    cn_budget_free(b);
}

/* The first bytes of a buffer may be paid for otherwise: they have room in a full account. */
static void some_of_a_buffer_is_included(void **state)
{
    struct cn_budget *b = make(1000, (struct cn_share[]){{1, true}}, 1);
    struct cn_account *a = cn_budget_account(b, 0);
    char text[400] = {0};
    struct cn_buf buf;

    cn_buf_init_for(&buf, 0, a);
    buf.included = 256;
    assert_int_equal(cn_account_take(a, 1000), 0);
    assert_int_equal(cn_buf_append(&buf, text, 256), 0);
    assert_int_equal(cn_buf_append(&buf, text, 1), CN_EHELD);
    cn_account_give(a, 500);
    cn_buf_reset(&buf);
    assert_int_equal(cn_buf_append(&buf, text, 400), 0);
    assert_int_equal(cn_account_held(a), 500 + buf.cap - 256);
    cn_buf_fini(&buf);
    assert_int_equal(cn_account_held(a), 500);
    cn_account_give(a, 500);
    cn_budget_free(b);
}

static void a_hold_gives_back_what_it_took(void **state)
{
    struct cn_budget *b = make(1000, (struct cn_share[]){{1, true}}, 1);
    struct cn_hold h = {.account = cn_budget_account(b, 0)}, other = h, nobody = {0};
    struct cn_buf beside;

    assert_int_equal(cn_hold_take(&other, 300), 0);
    assert_int_equal(cn_hold_take(&h, 400), 0);
    assert_int_equal(cn_hold_take(&h, 500), CN_EHELD);
    assert_int_equal(cn_hold_take(&h, 700), CN_ETOOLARGE); /* alone it would be too much, too */
    cn_buf_init_for(&beside, 0, h.account);
    h.beside = &beside;
    assert_int_equal(cn_buf_reserve(&beside, 200), 0);
    assert_int_equal(cn_hold_take(&h, 500), CN_ETOOLARGE);
    cn_buf_fini(&beside);
    assert_int_equal(cn_hold_take(&h, 500), CN_EHELD);
    assert_int_equal(h.bytes, 400);
    cn_hold_drop(&other);
    cn_hold_give(&h, 100);
    assert_int_equal(cn_budget_held(b), 300);
    cn_hold_drop(&h);
    assert_int_equal(cn_hold_take(&nobody, 1ull << 60), 0);
    cn_hold_drop(&nobody);
    cn_budget_free(b);
}

/* A holder of memory that can be given up. */
struct keeper {
    struct cn_account *keeps, *asked[8];
    unsigned n_asked;
    uint64_t kept;
};

static bool spare_100(void *arg, struct cn_account *account)
{
    struct keeper *k = arg;

    assert_true(k->n_asked < 8);
    k->asked[k->n_asked++] = account;
    if (!k->kept || (account && account != k->keeps)) return false;
    k->kept -= 100;
    cn_account_give(k->keeps, 100);
    return true;
}

/* Reserves of 250 each, 500 lent: each may hold 500. */
static void what_is_kept_gives_way(void **state)
{
    struct cn_budget *b = make(1000, (struct cn_share[]){{1, true}, {1, true}}, 2);
    struct cn_account *a = cn_budget_account(b, 0), *other = cn_budget_account(b, 1);
    struct keeper k = {.keeps = a, .kept = 500};

    cn_budget_on_short(b, spare_100, &k);
    assert_int_equal(cn_account_take(a, 500), 0);
    assert_true(cn_account_borrows(a) && !cn_account_borrows(other));
    assert_int_equal(cn_account_take(a, 501), CN_ETOOLARGE); /* no keeper can help */
    assert_int_equal(k.n_asked, 0);
    assert_int_equal(cn_account_take(a, 150), 0); /* of its own */
    assert_true(k.n_asked == 2 && k.asked[0] == a && k.asked[1] == a && k.kept == 300);
    k.n_asked = 0;
    assert_int_equal(cn_account_take(other, 500), 0); /* the first had borrowed 200 of the 500 */
    assert_true(k.n_asked == 2 && !k.asked[0] && !k.asked[1] && k.kept == 100);
    k.n_asked = 0;
    assert_int_equal(cn_account_take(other, 1), CN_EHELD);
    assert_true(k.n_asked == 1 && k.asked[0] == other);
    cn_account_give(a, 250);
    cn_account_give(other, 500);
    cn_budget_free(b);
}

static bool say_so_only(void *arg, struct cn_account *account)
{
    (void)account;
    ++*(unsigned *)arg;
    return true;
}

static void a_take_asks_so_often_only(void **state)
{
    struct cn_budget *b = make(1000, (struct cn_share[]){{1, true}, {1, true}}, 2);
    struct cn_account *a = cn_budget_account(b, 0);
    unsigned asked = 0;

    cn_budget_on_short(b, say_so_only, &asked);
    assert_int_equal(cn_account_take(a, 500), 0);
    assert_int_equal(cn_account_take(a, 1), CN_EHELD);
    assert_int_equal(asked, CN_SPARES_MOST);
    cn_account_give(a, 500);
    cn_budget_free(b);
}

static void *churn(void *arg)
{
    struct cn_account *a = arg;

    for (int i = 0; i < 20000; i++)
        if (!cn_account_take(a, (uint64_t)i % 97 + 1)) cn_account_give(a, (uint64_t)i % 97 + 1);
    return NULL;
}

static void threads_share_an_account(void **state)
{
    struct cn_budget *b = make(300, (struct cn_share[]){{1, true}, {1, true}}, 2);
    pthread_t t[4];

    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, churn, cn_budget_account(b, i % 2)), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(cn_budget_held(b), 0);
    cn_budget_free(b);
}

/* Divided anew while it is in use: accounts stay where they are and keep what they hold, and all
 * together never hold more than the budget. */
static void test_divided_anew(void **state)
{
    struct cn_share shares[3] = {{1, true}, {1, true}, {2, true}};
    struct cn_budget *b = NULL;

    assert_int_equal(cn_budget_new(1000, shares, 2, &b), 0);
    struct cn_account *first = cn_budget_account(b, 0), *second = cn_budget_account(b, 1);
    assert_int_equal(cn_account_take(first, 500), 0); /* 250 of its own and 250 borrowed */
    assert_int_equal(cn_budget_grow(b, 3), 0);
    assert_ptr_equal(cn_budget_account(b, 0), first);
    struct cn_account *third = cn_budget_account(b, 2);
    assert_int_equal(cn_account_take(third, 1), CN_ETOOLARGE); /* nothing is for it yet */
    cn_budget_divide(b, shares, 3);
    assert_int_equal(cn_account_most(third), 500);
    assert_int_equal(cn_account_take(third, 250), 0);
    assert_int_equal(cn_account_take(second, 125), 0);
    assert_int_equal(cn_account_take(second, 126), CN_EFULL);
    assert_int_equal(cn_account_take(first, 1), CN_EHELD); /* it has more than it may by now */
    shares[0] = (struct cn_share){0, false};
    cn_budget_divide(b, shares, 3);
    assert_int_equal(cn_account_held(first), 500);
    assert_int_equal(cn_budget_held(b), 875);
    assert_int_equal(cn_account_take(third, 83), 0);
    assert_int_equal(cn_account_take(second, 41), 0);
    assert_int_equal(cn_account_take(second, 2), CN_EFULL);
    cn_account_give(first, 500);
    assert_int_equal(cn_account_take(second, 2), 0);
    cn_account_give(second, 168);
    cn_account_give(third, 333);
    cn_budget_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_account_takes_all_that_there_is),
        cmocka_unit_test(nobody_takes_another_ones_reserve),
        cmocka_unit_test(who_may_not_borrow_has_its_reserve),
        cmocka_unit_test(a_hundred_that_take_all_they_can_leave_each_its_reserve),
        cmocka_unit_test(a_buffer_is_paid_for_before_it_grows),
        cmocka_unit_test(some_of_a_buffer_is_included),
        cmocka_unit_test(a_hold_gives_back_what_it_took),
        cmocka_unit_test(what_is_kept_gives_way),
        cmocka_unit_test(a_take_asks_so_often_only),
        cmocka_unit_test(threads_share_an_account),
        cmocka_unit_test(test_divided_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
