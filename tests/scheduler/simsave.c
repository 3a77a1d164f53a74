/* The simulated device's memory of the host: whole blocks are copied out and back; see sim.h. */
#include "tests/scheduler/siminner.h"

#include <stdlib.h>
#include <string.h>

struct sim_kept {
    struct sim_kept *next;
    uint64_t id, words;
    uint32_t model, n;
    struct kv_held *blocks;
    uint64_t *data; /* block after block */
};

static uint64_t words_of(const struct sim *m, const struct kv_held *b)
{
    return m->o.groups[b->group].block_bytes / 8;
}

static void move(struct sim *m, const struct kv_held *b, uint64_t *data, bool out)
{
    if (b->block == KV_NO_BLOCK) {
        sim_fail(m, "a block that is not there is moved");
        return;
    }
    if (!out) sim_may_write(m, b->block, 0);
    for (uint64_t i = 0; i < words_of(m, b); i++) {
        uint64_t *w = sim_word(m, b->group, b->block, i);

        if (out)
            data[i] = *w;
        else
            *w = data[i];
    }
}

double sim_save_rate(void *self)
{
    return ((struct sim *)self)->o.save_rate;
}

int sim_save(void *self, uint32_t model, const struct kv_held *blocks, uint32_t n, uint64_t *kept)
{
    struct sim *m = self;
    uint64_t words = 0, at = 0;

    for (uint32_t i = 0; i < n; i++)
        words += words_of(m, &blocks[i]);
    if (m->kept_words + words > m->o.host_words) return CN_ENOMEM;
    if (m->o.fail_save && sim_below(m, m->o.fail_save) == 0) return CN_EIO;
    struct sim_kept *k = sim_alloc(m, sizeof *k);
    *k = (struct sim_kept){
        .next = m->kept, .id = ++m->n_kept, .words = words, .model = model, .n = n};
    k->blocks = sim_alloc(m, n * sizeof *blocks);
    k->data = sim_alloc(m, words * sizeof *k->data);
    memcpy(k->blocks, blocks, n * sizeof *blocks);
    for (uint32_t i = 0; i < n; i++) {
        move(m, &blocks[i], k->data + at, true);
        at += words_of(m, &blocks[i]);
    }
    m->kept = k;
    m->kept_words += words;
    *kept = k->id;
    return 0;
}

static struct sim_kept **find(struct sim *m, uint64_t id)
{
    struct sim_kept **at = &m->kept;

    while (*at && (*at)->id != id)
        at = &(*at)->next;
    if (!*at) sim_fail(m, "nothing is kept by that name");
    return at;
}

int sim_restore(void *self, uint32_t model, uint64_t kept, const struct kv_held *blocks, uint32_t n)
{
    struct sim *m = self;
    struct sim_kept *k = *find(m, kept);

    if (!k) return CN_EINTERNAL;
    if (k->model != model) sim_fail(m, "blocks of another model");
    if (m->o.fail_save && sim_below(m, m->o.fail_save) == 0) return CN_EIO;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t at = 0;
        uint32_t j = 0;

        while (j < k->n &&
               (k->blocks[j].group != blocks[i].group || k->blocks[j].index != blocks[i].index))
            at += words_of(m, &k->blocks[j++]);
        if (j == k->n)
            sim_fail(m, "a block that was not saved is restored");
        else
            move(m, &blocks[i], k->data + at, false);
    }
    return 0;
}

void sim_forget(void *self, uint64_t kept)
{
    struct sim *m = self;
    struct sim_kept **at = find(m, kept), *k = *at;

    if (!k) return;
    *at = k->next;
    m->kept_words -= k->words;
    free(k->blocks);
    free(k->data);
    free(k);
}
