/* The text workers: turns by CPU time over weight, slices, bounds, cancelled and detached jobs. */
#include "server/json.h"
#include "server/text_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

struct job {
    struct srv_job job;
    int number;
    bool worked, ended_early;
    atomic_bool *end;   /* spins until it is set */
    atomic_ullong *ran; /* counts rounds of spinning */
};

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static int order[256];
static int n_order;
static atomic_int n_running, most_running, n_begun, n_detached;

static void nap(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* CPU time, whatever else the machine does. */
static void burn(uint64_t ns)
{
    struct timespec t;
    uint64_t from = 0, now;
    do {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
        if (!from) from = now;
    } while (now - from < ns);
}

static void work(struct srv_job *j)
{
    struct job *job = (struct job *)j;
    if (job->number < 0) { /* holds the only worker until the others wait in line */
        pthread_mutex_lock(&gate);
        pthread_mutex_unlock(&gate);
        return;
    }
    burn(500000);
    job->worked = true;
    pthread_mutex_lock(&gate);
    order[n_order++] = job->number;
    pthread_mutex_unlock(&gate);
}

/* Runs in rounds of a tenth of a millisecond until it is told to end. */
static void spin(struct srv_job *j)
{
    struct job *job = (struct job *)j;
    atomic_fetch_add(&n_begun, 1);
    while (!atomic_load(job->end)) {
        int now = atomic_fetch_add(&n_running, 1) + 1, most = atomic_load(&most_running);
        while (now > most && !atomic_compare_exchange_weak(&most_running, &most, now)) {
        }
        burn(100000);
        if (job->ran) atomic_fetch_add(job->ran, 1);
        atomic_fetch_sub(&n_running, 1);
        if (srv_text_yield(j)) continue;
        job->ended_early = true;
        break;
    }
    job->worked = true;
}

static void drop(struct srv_job *j)
{
    for (int i = 0; i < 100; i++) {
        burn(100000);
        srv_text_yield(j);
    }
    atomic_fetch_add(&n_detached, 1);
    free(j);
}

static struct job *new_job(uint32_t tenant, uint64_t cost, void (*what)(struct srv_job *j))
{
    struct job *j = calloc(1, sizeof *j);
    assert_non_null(j);
    j->job.lane = tenant;
    j->job.cost = cost;
    j->job.work = what;
    return j;
}

static struct job *push(struct srv_text_pool *p, uint32_t tenant, uint64_t cost, int number)
{
    struct job *j = new_job(tenant, cost, work);
    j->number = number;
    srv_text_push(p, &j->job);
    return j;
}

static struct job *push_spin(struct srv_text_pool *p, uint32_t tenant, uint64_t cost,
                             atomic_bool *end, atomic_ullong *ran)
{
    struct job *j = new_job(tenant, cost, spin);
    j->end = end;
    j->ran = ran;
    srv_text_push(p, &j->job);
    return j;
}

static unsigned take(struct cn_mailbox *m, unsigned want)
{
    unsigned n = 0;
    while (n < want && cn_mailbox_wait(m, 20000000000u))
        for (struct cn_msg *x = cn_mailbox_take(m), *next; x; x = next) {
            next = x->next;
            free(x);
            n++;
        }
    return n;
}

static struct srv_text_pool *begin(struct cn_mailbox *done, unsigned slots, const double *weights,
                                   size_t n)
{
    struct srv_text_pool *p = NULL;
    n_order = 0;
    atomic_store(&n_running, 0);
    atomic_store(&most_running, 0);
    atomic_store(&n_begun, 0);
    assert_int_equal(cn_mailbox_init(done, NULL, NULL), 0);
    assert_int_equal(srv_text_pool_new(slots, weights, n, done, &p, NULL), 0);
    return p;
}

/* Lanes come while jobs run, and weights change; jobs that wait stay in their lanes. */
static void test_lanes_grow(void **state)
{
    double one = 1, weights[150];
    struct cn_mailbox done;
    struct srv_text_pool *p = begin(&done, 1, &one, 1);

    for (int i = 0; i < 150; i++)
        weights[i] = 1 + i % 5;
    pthread_mutex_lock(&gate);
    push(p, 0, 1, -1);
    nap(50); /* the worker has it */
    for (int i = 0; i < 20; i++)
        push(p, 0, 1000, i);
    for (uint32_t n = 2; n <= 151; n++) {
        assert_int_equal(srv_text_grow(p, n), 0);
        push(p, n - 1, 1000, 1000 + (int)n);
    }
    srv_text_weigh(p, 1, weights, 150);
    pthread_mutex_unlock(&gate);
    assert_int_equal(take(&done, 171), 171);
    assert_int_equal(n_order, 170);
    srv_text_pool_free(p);
    cn_mailbox_fini(&done);
}

static void test_fair_queue(void **state)
{
    double weights[3] = {1, 1, 4};
    struct cn_mailbox done;
    struct srv_text_pool *p = begin(&done, 1, weights, 3);

    pthread_mutex_lock(&gate);
    push(p, 0, 1, -1);
    nap(50); /* the worker has it */
    for (int i = 0; i < 50; i++)
        push(p, 0, 1000, i); /* a flood */
    push(p, 1, 1000, 100);   /* one of another tenant */
    for (int i = 0; i < 8; i++)
        push(p, 2, 1000, 200 + i); /* a tenant of weight 4 */
    struct job *dropped = push(p, 1, 1000, 101);
    atomic_store(&dropped->job.cancelled, true);
    pthread_mutex_unlock(&gate);
    assert_int_equal(take(&done, 61), 61);
    assert_int_equal(n_order, 59);
    int lone = -1, heavy = 0, flood = 0;
    for (int i = 0; i < n_order; i++) {
        if (order[i] == 100) lone = i;
        if (i < 10) {
            heavy += order[i] >= 200;
            flood += order[i] < 50;
        }
        assert_true(order[i] != 101);
    }
    assert_in_range(lone, 0, 3); /* behind at most one job of each other */
    assert_true(heavy >= 6);     /* four times the flood's share */
    assert_true(flood >= 1 && flood <= 3);
    srv_text_pool_free(p);
    cn_mailbox_fini(&done);
}

/* Six endless jobs of one tenant leave another one's short job waiting for a slice, and a cancelled
 * one gives its thread back at its next yield. */
static void test_slices(void **state)
{
    double weights[2] = {1, 1};
    struct cn_mailbox done;
    struct srv_text_pool *p = begin(&done, 2, weights, 2);
    atomic_bool end = false;
    struct job *jobs[6];

    for (int i = 0; i < 6; i++)
        jobs[i] = push_spin(p, 0, 16 << 20, &end, NULL);
    nap(50);
    uint64_t since = cn_now_ns();
    for (int i = 0; i < 20; i++) {
        push(p, 1, 100, i);
        assert_int_equal(take(&done, 1), 1);
    }
    uint64_t each = (cn_now_ns() - since) / 20;
    assert_true(each < 100000000); /* a slice and the job, on a machine that is not idle */
    assert_true(atomic_load(&n_begun) <= 3);
    since = cn_now_ns();
    for (int i = 0; i < 6; i++)
        atomic_store(&jobs[i]->job.cancelled, true);
    assert_int_equal(take(&done, 6), 6);
    assert_true(cn_now_ns() - since < 500000000);
    srv_text_pool_free(p);
    cn_mailbox_fini(&done);
}

static void test_shares(void **state)
{
    double weights[3] = {1, 3, 1};
    struct cn_mailbox done;
    struct srv_text_pool *p = begin(&done, 1, weights, 3);
    atomic_bool end = false;
    atomic_ullong ran[3] = {0};

    for (uint32_t t = 0; t < 2; t++)
        for (int i = 0; i < 3; i++)
            push_spin(p, t, 1 << 20, &end, &ran[t]);
    nap(300);
    push_spin(p, 2, 1 << 20, &end, &ran[2]); /* from idle: no credit for the time before */
    unsigned long long late = atomic_load(&ran[0]);
    nap(300);
    double share = (double)atomic_load(&ran[1]) / (double)atomic_load(&ran[0]);
    late = atomic_load(&ran[0]) - late;
    assert_true(share > 2.2 && share < 3.8);
    share = (double)atomic_load(&ran[2]) / (double)late;
    assert_true(share > 0.5 && share < 1.8);
    assert_int_equal(atomic_load(&most_running), 1);
    atomic_store(&end, true);
    assert_int_equal(take(&done, 7), 7);
    srv_text_pool_free(p);
    cn_mailbox_fini(&done);
}

/* More long jobs than threads for them: those begun are bounded, the rest waits, and a short job of
 * one more tenant waits for none of them. */
static void test_bounds(void **state)
{
    enum { TENANTS = SRV_TEXT_MAX_LONG + 20 };
    double weights[TENANTS + 1];
    struct cn_mailbox done;
    for (size_t i = 0; i <= TENANTS; i++)
        weights[i] = 1;
    struct srv_text_pool *p = begin(&done, 2, weights, TENANTS + 1);
    atomic_bool end = false;

    for (uint32_t t = 0; t < TENANTS; t++)
        for (int i = 0; i < 3; i++)
            push_spin(p, t, 1 << 20, &end, NULL);
    for (int i = 0; i < 400 && atomic_load(&n_begun) < SRV_TEXT_MAX_LONG; i++)
        nap(10);
    nap(50);
    assert_int_equal(atomic_load(&n_begun), SRV_TEXT_MAX_LONG);
    assert_in_range(atomic_load(&most_running), 1, 2);
    push(p, TENANTS, 100, 7);
    assert_int_equal(take(&done, 1), 1);
    assert_int_equal(atomic_load(&n_begun), SRV_TEXT_MAX_LONG);
    atomic_store(&end, true);
    assert_int_equal(take(&done, 3 * TENANTS), 3 * TENANTS);
    assert_int_equal(atomic_load(&n_begun), 3 * TENANTS);
    srv_text_pool_free(p);
    cn_mailbox_fini(&done);
}

/* A detached job is worked on whatever happens, and comes back nowhere. */
static void test_detached(void **state)
{
    double weight = 1;
    struct cn_mailbox done;
    struct srv_text_pool *p = begin(&done, 2, &weight, 1);

    atomic_store(&n_detached, 0);
    for (int i = 0; i < 6; i++) {
        struct job *j = new_job(0, 1 << 20, drop);
        j->job.detached = true;
        atomic_store(&j->job.cancelled, i % 2);
        srv_text_push(p, &j->job);
    }
    srv_text_pool_free(p);
    assert_int_equal(atomic_load(&n_detached), 6);
    assert_null(cn_mailbox_take(&done));
    cn_mailbox_fini(&done);
}

/* Jobs that wait, run and are parked when the pool ends. */
static void test_pool_end(void **state)
{
    double weights[2] = {1, 1};
    struct cn_mailbox done;
    struct srv_text_pool *p = begin(&done, 2, weights, 2);
    atomic_bool end = false;

    for (int i = 0; i < 8; i++)
        push_spin(p, (uint32_t)i % 2, 1 << 20, &end, NULL);
    for (int i = 0; i < 100; i++)
        push(p, (uint32_t)i % 2, 1, 0);
    nap(50);
    uint64_t since = cn_now_ns();
    srv_text_pool_free(p);
    assert_true(cn_now_ns() - since < 1000000000);
    assert_int_equal(take(&done, 108), 108); /* worked on or not, all came back */
    cn_mailbox_fini(&done);
}

/* A body of texts for which jansson's buffer grows, read when the client has just left: at any of
 * the calls for memory that could be the one that asks whether to go on. */
static void read_body(struct srv_job *j)
{
    static char body[1 << 14];
    json_t *list = json_array();
    size_t n = 0;
    for (unsigned i = 0; i < 9; i++) {
        n += (size_t)snprintf(body + n, sizeof body - n, "%s\"%u\":\"y", i ? "," : "{", i);
        for (unsigned k = 0; k < 5u << i; k++)
            n += (size_t)snprintf(body + n, sizeof body - n, "\\nx");
        body[n++] = '"';
    }
    body[n++] = '}';
    atomic_store(&j->cancelled, true);
    for (unsigned i = 0; i < 1100; i++) {
        struct srv_json_room left = {.left = 1000};
        struct cn_error err;
        json_t *root;
        int rc = srv_json_parse(body, n, &left, &root, &err);
        if (!rc && json_string_length(json_object_get(root, "8")) != 1 + (10u << 8)) abort();
        if (!rc) json_decref(root);
        if (rc && rc != CN_ECANCELLED) abort();
        /* one call more, and so the next body begins at another of them */
        json_array_append_new(list, json_integer(i));
    }
    json_decref(list);
}

static void test_a_body_of_a_client_who_has_left(void **state)
{
    struct cn_mailbox done;
    struct job *job = calloc(1, sizeof *job);
    struct srv_text_pool *p = begin(&done, 1, (double[]){1}, 1);
    srv_json_setup();
    job->job.work = read_body;
    srv_text_push(p, &job->job);
    assert_int_equal(take(&done, 1), 1);
    srv_text_pool_free(p);
    cn_mailbox_fini(&done);
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fair_queue), cmocka_unit_test(test_lanes_grow),
        cmocka_unit_test(test_slices),     cmocka_unit_test(test_shares),
        cmocka_unit_test(test_bounds),     cmocka_unit_test(test_detached),
        cmocka_unit_test(test_pool_end),   cmocka_unit_test(test_a_body_of_a_client_who_has_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
