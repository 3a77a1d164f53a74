/* base/mailbox.c with threads: nothing lost, order kept per sender, wake only from empty. */
#include "base/base.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SENDERS 4
#define EACH    20000

struct item {
    struct cn_msg msg;
    int sender, number;
};

static void count_wake(void *arg)
{
    atomic_fetch_add((_Atomic int *)arg, 1);
}

static void wakes_only_when_empty(void **state)
{
    struct cn_mailbox m;
    _Atomic int wakes = 0;
    struct cn_msg a, b, c;

    assert_int_equal(cn_mailbox_init(&m, count_wake, &wakes), 0);
    assert_null(cn_mailbox_take(&m));
    cn_mailbox_post(&m, &a);
    cn_mailbox_post(&m, &b);
    assert_int_equal(wakes, 1);
    assert_true(cn_mailbox_wait(&m, 0)); /* a look takes nothing */
    struct cn_msg *list = cn_mailbox_take(&m);
    assert_ptr_equal(list, &a);
    assert_ptr_equal(list->next, &b);
    assert_null(b.next);
    assert_false(cn_mailbox_wait(&m, 0));
    cn_mailbox_post(&m, &c);
    assert_int_equal(wakes, 2);
    assert_ptr_equal(cn_mailbox_take(&m), &c);
    cn_mailbox_fini(&m);
}

static void wait_times_out(void **state)
{
    struct cn_mailbox m;
    uint64_t t0 = cn_now_ns();

    assert_int_equal(cn_mailbox_init(&m, NULL, NULL), 0);
    assert_false(cn_mailbox_wait(&m, 30000000));
    assert_in_range(cn_now_ns() - t0, 30000000, UINT64_C(20000000000));
    cn_mailbox_fini(&m);
}

struct sender {
    struct cn_mailbox *m;
    struct item *items;
    int id;
};

static void *send_all(void *arg)
{
    struct sender *s = arg;

    for (int i = 0; i < EACH; i++) {
        s->items[i].sender = s->id;
        s->items[i].number = i;
        cn_mailbox_post(s->m, &s->items[i].msg);
    }
    return NULL;
}

static void many_senders(void **state)
{
    struct cn_mailbox m;
    struct sender s[SENDERS];
    pthread_t t[SENDERS];
    int next[SENDERS] = {0}, total = 0;

    assert_int_equal(cn_mailbox_init(&m, NULL, NULL), 0);
    for (int i = 0; i < SENDERS; i++) {
        s[i] = (struct sender){&m, calloc(EACH, sizeof(struct item)), i};
        assert_non_null(s[i].items);
        assert_int_equal(pthread_create(&t[i], NULL, send_all, &s[i]), 0);
    }
    while (total < SENDERS * EACH) {
        assert_true(cn_mailbox_wait(&m, UINT64_C(60000000000)));
        for (struct cn_msg *p = cn_mailbox_take(&m); p; p = p->next, total++) {
            struct item *it = CN_CONTAINER(p, struct item, msg);
            assert_int_equal(it->number, next[it->sender]++);
        }
    }
    for (int i = 0; i < SENDERS; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(next[i], EACH);
        free(s[i].items);
    }
    assert_null(cn_mailbox_take(&m));
    cn_mailbox_fini(&m);
}

static void *post_late(void *arg)
{
    static struct cn_msg msg;
    struct timespec t = {0, 20000000};

    nanosleep(&t, NULL);
    cn_mailbox_post(arg, &msg);
    return NULL;
}

static void wait_for_ever_wakes(void **state)
{
    struct cn_mailbox m;
    pthread_t t;

    assert_int_equal(cn_mailbox_init(&m, NULL, NULL), 0);
    assert_int_equal(pthread_create(&t, NULL, post_late, &m), 0);
    assert_true(cn_mailbox_wait(&m, UINT64_MAX));
    assert_non_null(cn_mailbox_take(&m));
    pthread_join(t, NULL);
    cn_mailbox_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wakes_only_when_empty),
        cmocka_unit_test(wait_times_out),
        cmocka_unit_test(many_senders),
        cmocka_unit_test(wait_for_ever_wakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
