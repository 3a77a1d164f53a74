/* The simulated device; see sim.h. */
#include "tests/scheduler/siminner.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

uint64_t *sim_word(struct sim *m, uint32_t g, uint32_t block, uint64_t i)
{
    uint64_t unit = m->o.groups[g].block_bytes / 8;
    uint64_t at = (uint64_t)(block >> KV_BLOCK_INDEX_BITS) * m->slab_units +
                  (block & ((1u << KV_BLOCK_INDEX_BITS) - 1)) * unit + i;

    return &m->mem[at];
}

/* Per block: at most 64 of a slab are told apart, which a simulated slab never exceeds. */
static uint64_t user_index(uint32_t block)
{
    uint32_t index = block & ((1u << KV_BLOCK_INDEX_BITS) - 1);

    cn_assert(index < 64);
    return (uint64_t)(block >> KV_BLOCK_INDEX_BITS) * 64 + index;
}

static struct sim_step *in_flight(const struct sim *m, uint64_t ticket)
{
    for (uint32_t i = 0; i < m->n_steps; i++) {
        if (m->steps[i]->ticket == ticket) return m->steps[i];
    }
    return NULL;
}

void sim_may_write(struct sim *m, uint32_t block, uint64_t owner)
{
    uint64_t u = block == KV_NO_BLOCK ? 0 : user_index(block);

    if (block == KV_NO_BLOCK) sim_fail(m, "a row has no block to write to");
    if (in_flight(m, m->users[u].ticket) && m->users[u].owner != owner)
        sim_fail(m, "block %x is written while a step in flight reads it", block);
}

static uint64_t owner_of(const struct sch_segment *s)
{
    return s->request * 16 + s->choice + 1;
}

/* Every word of the block carries the state, in another form each. */
static uint64_t read_state(struct sim *m, uint32_t g, uint32_t block, uint64_t pos)
{
    uint64_t state = pos ? *sim_word(m, g, block, 0) : 0;

    for (uint64_t i = 1; pos && i < m->o.groups[g].block_bytes / 8; i++) {
        if (*sim_word(m, g, block, i) != state + i) sim_fail(m, "half a state at %" PRIu64, pos);
    }
    return state;
}

static void write_state(struct sim *m, uint32_t g, uint32_t block, uint64_t state)
{
    for (uint64_t i = 0; i < m->o.groups[g].block_bytes / 8; i++)
        *sim_word(m, g, block, i) = state + i;
}

/* The device's own tables of a slot: it is sent what changed since the slot's last step, and all of
 * them for a new generation. */
static void follow_slot(struct sim *m, const struct sch_segment *s)
{
    const uint32_t *const *t = kv_seq_tables(s->seq);
    struct sim_slot *slot = &m->slots[s->slot];
    uint64_t size = m->o.context / m->o.block_tokens + 1;
    bool fresh = s->generation != slot->generation;

    if (s->generation < slot->generation) sim_fail(m, "a slot's generation falls");
    if (!fresh && slot->owner != owner_of(s)) sim_fail(m, "slot %u is of two choices", s->slot);
    slot->generation = s->generation;
    slot->owner = owner_of(s);
    for (uint32_t g = 0; g < m->o.n_groups; g++) {
        uint64_t n = sim_is_state(m, g) ? 1 : (s->pos + s->n_rows - 1) / m->o.block_tokens + 1;
        uint64_t from = kv_seq_changed(s->seq, g);

        if (!slot->table[g]) slot->table[g] = sim_alloc(m, size * sizeof(uint32_t));
        if (fresh) memset(slot->table[g], 0xff, size * sizeof(uint32_t));
        for (uint64_t i = fresh ? 0 : from; i < n; i++)
            slot->table[g][i] = t[g][i];
    }
}

/* The hash of what the row sees. */
static uint64_t run_row(struct sim *m, const struct sch_segment *s, uint64_t pos, uint32_t token)
{
    uint32_t *const *t = m->slots[s->slot].table;
    struct sim_req *r = sim_req_of(s->user);
    uint64_t h = sim_row_begin(r, pos, token);
    uint32_t bt = m->o.block_tokens;

    for (uint32_t g = 0; g < m->o.n_groups; g++) {
        if (sim_is_state(m, g)) {
            h = sim_mix(h, read_state(m, g, t[g][0], pos));
            continue;
        }
        for (uint64_t k = sim_first_seen(&m->o.groups[g], pos); k < pos; k++) {
            if (t[g][k / bt] == KV_NO_BLOCK) {
                sim_fail(m, "position %" PRIu64 " does not find %" PRIu64, pos, k);
                return 0;
            }
            h = sim_mix(h, *sim_word(m, g, t[g][k / bt], k % bt));
        }
    }
    for (uint32_t g = 0; g < m->o.n_groups; g++) {
        if (sim_is_state(m, g))
            write_state(m, g, t[g][0], sim_mix(h, 1000));
        else
            *sim_word(m, g, t[g][pos / bt], pos % bt) = sim_mix(h, g);
    }
    return h;
}

static void check_segment(struct sim *m, const struct sch_segment *s)
{
    const uint32_t *const *t = kv_seq_tables(s->seq);
    uint32_t bt = m->o.block_tokens;

    for (uint32_t g = 0; g < m->o.n_groups; g++) {
        uint64_t b = sim_is_state(m, g) ? 0 : s->pos / bt;
        uint64_t last = sim_is_state(m, g) ? 0 : (s->pos + s->n_rows - 1) / bt;

        for (; b <= last; b++)
            sim_may_write(m, t[g][b], owner_of(s));
    }
}

static void mark_segment(struct sim *m, const struct sch_segment *s, uint64_t ticket)
{
    const uint32_t *const *t = kv_seq_tables(s->seq);
    uint32_t bt = m->o.block_tokens;

    for (uint32_t g = 0; g < m->o.n_groups; g++) {
        uint64_t b = sim_is_state(m, g) ? 0 : sim_first_seen(&m->o.groups[g], s->pos) / bt;
        uint64_t last = sim_is_state(m, g) ? 0 : (s->pos + s->n_rows - 1) / bt;

        for (; b <= last; b++) {
            uint64_t u = t[g][b] == KV_NO_BLOCK ? 0 : user_index(t[g][b]);
            bool other = m->users[u].ticket == ticket && m->users[u].owner != owner_of(s);

            m->users[u].ticket = ticket;
            m->users[u].owner = other ? 0 : owner_of(s);
        }
    }
}

/* The id that a row takes from a step in flight. */
static uint32_t named_id(struct sim *m, const struct sch_segment *s)
{
    const struct sim_step *st = in_flight(m, s->from_ticket);

    if (!st)
        sim_fail(m, "a token of a step that is gone");
    else if (st->rows[s->from_row].state != SIM_DRAWN)
        sim_fail(m, "a token is named that was not drawn");
    return st ? st->rows[s->from_row].sampled : 0;
}

/* The draws of a segment, of which all but the first take the drafts for what was put out. */
static void draw_segment(struct sim *m, struct sim_step *st, const struct sch_segment *s)
{
    const struct sim_req *r = sim_req_of(s->user);
    struct sim_ids *mask = NULL;

    if (r->force_masks && sim_has_masks(r) && s->n_sample) {
        mask = sim_alloc(m, sizeof(*mask));
        if (r->text[s->choice]) *mask = r->text[s->choice]->mask;
    }
    for (uint32_t k = 0; k < s->n_sample; k++) {
        uint64_t pos = s->pos + s->n_rows - s->n_sample + k;
        struct sim_row *row = &st->rows[s->first_row + s->n_rows - s->n_sample + k];

        if (k && mask) sim_script(m, r, s->choice, pos - r->spec.n_prompt, row->token, mask);
        if (!mask || !sim_ids_next(mask, &row->sampled))
            row->sampled = sim_pick(m, r, s->choice, pos, row->token, row->hash);
        row->state = SIM_DRAWN;
    }
    free(mask);
}

/* The media that the segment has rows of, and no medium cut that is seen both ways. */
static void check_media(struct sim *m, const struct sch_segment *s, const struct sim_req *r)
{
    uint64_t end = s->pos + s->n_rows;
    uint32_t at = s->media, n = 0;

    for (uint32_t i = 0; i < r->spec.n_media; i++) {
        const struct sch_media *x = &r->media[i];

        if (x->first >= end || x->first + x->n <= s->pos) continue;
        n++;
        if (i != at++) sim_fail(m, "another medium than %u", i);
        if (x->both && (x->first < s->pos || x->first + x->n > end))
            sim_fail(m, "a medium is cut at %" PRIu64 " or %" PRIu64, s->pos, end);
    }
    if (n != s->n_media) sim_fail(m, "%u media instead of %u", s->n_media, n);
}

static void run_segment(struct sim *m, struct sim_step *st, const struct sch_segment *s)
{
    struct sim_req *r = sim_req_of(s->user);

    if (r->ends) sim_fail(m, "rows for a request that has ended");
    r->had_rows = true;
    if ((r->spec.flags & SCH_ONE_STEP) && (s->pos || s->n_rows != r->spec.n_prompt))
        sim_fail(m, "a part of a prompt that needs one step");
    if (s->n_sample > s->n_logits || s->n_logits > s->n_rows) sim_fail(m, "logits of a segment");
    if (s->n_sample > 1 &&
        (s->n_sample != s->n_rows || s->n_sample > m->o.max_draft + 1 || s->pos < r->spec.n_prompt))
        sim_fail(m, "a segment of %u rows and %u draws", s->n_rows, s->n_sample);
    check_media(m, s, r);
    follow_slot(m, s);
    for (uint32_t i = 0; i < s->n_rows; i++) {
        uint64_t pos = s->pos + i;
        struct sim_row *row = &st->rows[s->first_row + i];

        row->token = s->tokens ? s->tokens[i] : named_id(m, s);
        if (pos >= r->spec.n_prompt && row->token & KV_MEDIA) sim_fail(m, "a medium is put out");
        if (pos < r->spec.n_prompt && row->token != r->prompt[pos])
            sim_fail(m, "a wrong prompt token");
        if ((pos < r->spec.n_prompt) != (i < s->n_prompt_rows)) sim_fail(m, "rows of the prompt");
        if (i + s->n_logits >= s->n_rows && pos < r->spec.n_prompt && s->choice == 0)
            r->scored[pos]++;
        row->hash = run_row(m, s, pos, row->token);
        m->prompt_rows += pos < r->spec.n_prompt;
    }
    if (!m->o.late || (!sim_has_masks(r) && sim_below(m, 4) == 0)) draw_segment(m, st, s);
}

static void check_step(struct sim *m, const struct sch_step *step)
{
    uint32_t rows = 0, logits = 0, sample = 0, background = 0, drafts = 0, reads = 0;

    for (uint32_t i = 0; i < step->n_segments; i++) {
        const struct sch_segment *s = &step->segments[i];

        if (s->first_row != rows || !s->n_rows) sim_fail(m, "rows of a segment");
        if (s->adapter != sim_req_of(s->user)->spec.adapter) sim_fail(m, "another adapter");
        if (s->slot >= m->max_running) sim_fail(m, "slot %u", s->slot);
        if (sim_req_of(s->user)->spec.model != step->model) sim_fail(m, "a step of two models");
        background += sim_req_of(s->user)->spec.class == SCH_BACKGROUND;
        if (!s->tokens && s->n_rows != 1) sim_fail(m, "more than one row from a ticket");
        rows += s->n_rows;
        logits += s->n_logits;
        sample += s->n_sample;
        drafts += s->n_sample > 1 ? s->n_sample - 1 : 0;
        reads += s->pos + 1 < sim_req_of(s->user)->spec.n_prompt;
    }
    for (uint32_t k = 0; m->o.late && k < m->n_steps; k++) {
        if (!m->steps[k]->drawn) sim_fail(m, "a step is launched before another one is drawn");
    }
    if (drafts && reads && !m->o.guess) sim_fail(m, "drafts beside a prompt");
    if (rows != step->n_rows || logits != step->n_logits || sample != step->n_sample)
        sim_fail(m, "sums of a step");
    if (background && background != step->n_segments) sim_fail(m, "background rows beside others");
    if (rows > m->o.max_rows || logits > m->o.max_logit_rows || !rows)
        sim_fail(m, "a step of %u rows and %u logits", rows, logits);
}

static void start_step(struct sim *m, const struct sch_step *step, struct sim_step *st)
{
    st->rows = cn_calloc(step->n_rows, sizeof(*st->rows));
    st->step = step;
    st->ticket = ++m->tickets;
    st->lost = m->o.fail_collect && sim_below(m, m->o.fail_collect) == 0;
}

int sim_launch(void *self, const struct sch_step *step, uint64_t *ticket)
{
    struct sim *m = self;
    struct sim_step *st;

    check_step(m, step);
    if (m->n_steps == m->o.depth) sim_fail(m, "too many steps in flight");
    if (m->o.fail_launch && sim_below(m, m->o.fail_launch) == 0) return CN_EIO;
    for (uint32_t i = 0; i < step->n_segments; i++)
        check_segment(m, &step->segments[i]);
    if (m->failed) return CN_EIO;
    if (m->device) *m->device = true;
    st = cn_calloc(1, sizeof(*st));
    start_step(m, step, st);
    if (m->device) *m->device = false;
    *ticket = st->ticket;
    for (uint32_t i = 0; i < step->n_copies; i++) {
        const struct kv_copy *c = &step->copies[i];

        uint64_t words =
            sim_is_state(m, c->group) ? m->o.groups[c->group].block_bytes / 8 : c->n_tokens;

        for (uint64_t k = 0; k < words; k++)
            *sim_word(m, c->group, c->dst, k) = *sim_word(m, c->group, c->src, k);
    }
    for (uint32_t i = 0; i < step->n_segments; i++) {
        run_segment(m, st, &step->segments[i]);
        mark_segment(m, &step->segments[i], st->ticket);
    }
    m->n_beside += m->n_steps > 0;
    m->steps[m->n_steps++] = st;
    m->rows += step->n_rows;
    return 0;
}

static uint64_t keys_read(const struct sim *m, const struct sch_step *step)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < step->n_segments; i++) {
        const struct sch_segment *s = &step->segments[i];
        if (s->pos + s->n_rows > sim_req_of(s->user)->spec.n_prompt) continue;
        n += (s->pos + 1) * (m->o.keys_once ? 1 : s->n_rows);
    }
    return n;
}

/* Whether one of the choice's draws was asked for and is not put out yet. */
bool sim_draw_in_flight(const struct sim *m, const struct sim_req *r, uint32_t choice)
{
    for (uint32_t k = 0; k < m->n_steps; k++) {
        const struct sim_step *st = m->steps[k];

        for (uint32_t i = 0; i < st->step->n_segments; i++) {
            const struct sch_segment *s = &st->step->segments[i];

            if (s->user == r && s->choice == choice && s->n_sample) return true;
        }
    }
    return false;
}

/* All that comes before what is drawn was put out; ids that were forced are told. */
static void check_draw(struct sim *m, const struct sch_segment *s, const struct sch_draw *d)
{
    struct sim_req *r = sim_req_of(s->user);
    uint64_t index = s->pos + s->n_rows - s->n_sample + 1 - r->spec.n_prompt;
    const struct sim_text *x = r->text[s->choice];
    const struct sim_ids *due = x && x->due.n ? &x->due : NULL;

    if (d->ended != (r->choice_ends[s->choice] > 0)) sim_fail(m, "an end that was not told");
    if (d->ended) return;
    if (index > r->n_out[s->choice] || (index < r->n_out[s->choice] && d->only == SCH_NO_ID))
        sim_fail(m, "output %" PRIu64 " is drawn after %u", index, r->n_out[s->choice]);
    else if (index < r->n_out[s->choice] && d->only != r->out[s->choice][index])
        sim_fail(m, "another id than the one that was put out");
    else if (index == r->n_out[s->choice] && d->only != (due ? due->id[due->head] : SCH_NO_ID))
        sim_fail(m, "a draw without the id that was forced");
}

/* Its mask is not there: others go on without it. */
static void skip(struct sim *m, struct sch_draw *d, struct sim_req *r, struct sim_row *row)
{
    d->skipped = true;
    row->state = SIM_SKIPPED;
    m->n_skipped++;
    if (sim_below(m, 3) == 0) return; /* it was there at once */
    r->waits = true;
    sch_pause(m->sch, r->id, true);
}

int sim_draw(void *self, uint64_t ticket, struct sch_draw *draws, uint32_t n)
{
    struct sim *m = self;
    struct sim_step *st = m->steps[0];
    uint32_t k = 0;

    if (!m->n_steps || st->ticket != ticket || st->drawn) {
        sim_fail(m, "drawn out of order");
        return CN_EINTERNAL;
    }
    st->drawn = true;
    m->clock += m->o.jitter ? sim_below(m, m->o.jitter) : 0;
    if (m->o.fail_draw && sim_below(m, m->o.fail_draw) == 0) return CN_EIO;
    for (uint32_t i = 0; i < st->step->n_segments; i++) {
        const struct sch_segment *s = &st->step->segments[i];
        struct sim_row *row = &st->rows[s->first_row + s->n_rows - s->n_sample];

        if (!s->n_sample) continue;
        if (k == n || draws[k].segment != i) {
            sim_fail(m, "the draws of a step");
            return CN_EINTERNAL;
        }
        check_draw(m, s, &draws[k]);
        if (draws[k].only != SCH_NO_ID || draws[k].ended) {
            row->sampled = row->state == SIM_DRAWN ? row->sampled : ~0u;
            row->state = SIM_ONLY;
        } else if (m->o.skip && sim_below(m, m->o.skip) == 0) {
            skip(m, &draws[k], sim_req_of(s->user), row);
        } else if (row->state == SIM_UNDRAWN) {
            m->n_masked += sim_has_masks(sim_req_of(s->user));
            draw_segment(m, st, s);
        }
        k++;
    }
    if (k != n) sim_fail(m, "draws of no row");
    return 0;
}

/* Results of a segment's draws: how many. Nobody is to look at those behind the last that counts.
 */
static uint32_t results_of(struct sim *m, const struct sim_step *st, const struct sch_segment *s,
                           struct sch_row_result *out)
{
    const struct sim_row *row = &st->rows[s->first_row + s->n_rows - s->n_sample];
    bool counts = true;

    for (uint32_t k = 0; k < s->n_sample; k++, row++) {
        bool nan = m->o.fail_row && sim_below(m, m->o.fail_row) == 0;

        counts = counts && row->state != SIM_SKIPPED;
        out[k] = (struct sch_row_result){.status = CN_EINTERNAL, .token = ~0u};
        if (!counts) continue;
        if (k && m->o.skip && sim_below(m, m->o.skip) == 0) {
            out[k].status = CN_ECANCELLED;
            counts = false;
            continue;
        }
        out[k] = (struct sch_row_result){
            .status = nan ? CN_ENUMERIC : 0, .token = row->sampled, .drawn = row};
        counts = k + 1 < s->n_sample && row->sampled == s->tokens[k + 1];
    }
    return s->n_sample;
}

int sim_collect(void *self, uint64_t ticket, struct sch_step_result *out)
{
    struct sim *m = self;
    struct sim_step *st = m->steps[0];
    uint32_t n = 0;
    bool lost = st->lost;

    if (!m->n_steps || st->ticket != ticket) sim_fail(m, "collected out of order");
    if (m->o.late && !st->drawn) sim_fail(m, "collected before it was drawn");
    for (uint32_t i = 0; i < st->step->n_segments; i++) {
        const struct sch_segment *s = &st->step->segments[i];

        if (sim_req_of(s->user)->ends) sim_fail(m, "a request has ended with rows in flight");
        n += results_of(m, st, s, m->results + n);
    }
    m->clock += m->o.step_ns + m->o.row_ns * st->step->n_rows;
    m->clock += m->o.key_ns * keys_read(m, st->step);
    m->clock += m->o.jitter ? sim_below(m, m->o.jitter) : 0;
    *out = (struct sch_step_result){n, m->results};
    m->steps[0] = m->steps[1];
    m->n_steps--;
    free(st->rows);
    free(st);
    return lost ? CN_EIO : 0;
}
