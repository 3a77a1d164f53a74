/* From files to what serves: measuring and opening models, the pool, the scheduler.
 * rt_open_all runs on the thread that calls rt_new, before any other; rt_model_measure and
 * rt_model_open there or on the loader's; rt_attach and rt_detach on the engine thread. */
#include "runtime/rt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TEMPLATE_MAX (4u << 20) /* bytes of a chat template */

/* ---- one model's file ------------------------------------------------------------------------ */

/* Refuses a window beyond what the model was trained for. Other faults of the header are
 * eng_model_open's to report. */
static int check_context(const char *path, uint64_t asked, const char *key, struct cn_error *err)
{
    uint64_t trained;
    struct eng_str arch;
    struct eng_gguf *g;
    char name[96];
    int rc = eng_gguf_open(path, &g, err);
    if (rc) return rc;
    if (!eng_gguf_str(g, "general.architecture", &arch, NULL) && arch.n < 64) {
        snprintf(name, sizeof name, "%.*s.context_length", (int)arch.n, arch.p);
        if (!eng_gguf_u64(g, name, &trained, NULL) && trained && asked > trained)
            rc = cn_fail_param(err, CN_ERANGE, key,
                               "%s is %llu tokens, but the model was trained for %llu: ask for at "
                               "most that, or leave it out",
                               key, (unsigned long long)asked, (unsigned long long)trained);
    }
    eng_gguf_close(g);
    return rc;
}

int rt_check_model(const struct cfg *cfg, const char *model_path, struct cn_error *err)
{
    return check_context(model_path, (uint64_t)cfg->model.context, "model.context", err);
}

int rt_check_served(const struct rt_model_opts *m, struct cn_error *err)
{
    return check_context(m->path, m->context, "models.context", err);
}

/* The file may have been fetched into the models folder since the last attempt. */
static int find_file(struct rt_model *m, struct cn_error *err)
{
    if (m->path) return 0;
    char *dir = cfg_models_dir();
    int rc =
        dir ? cfg_find_model(dir, m->id, &m->path, err) : cn_fail(err, CN_ENOMEM, "out of memory");
    free(dir);
    return rc;
}

static int read_template(const char *path, const char *key, struct cn_buf *out,
                         struct cn_error *err)
{
    int rc = cn_file_read(path, false, TEMPLATE_MAX, out, err);
    if (!rc && out->len > TEMPLATE_MAX)
        rc = cn_fail(err, CN_ELIMIT, "%s: a chat template has at most %s", path,
                     cn_size(TEMPLATE_MAX).text);
    if (rc && err) snprintf(err->param, sizeof err->param, "%s", key);
    return rc;
}

static struct eng_model_opts opts_of(const struct rt_model *m)
{
    struct eng_model_opts o = {.device = m->group->device, .prepare = rt_prepare_opts(m->rt->cfg)};
    o.prepare.kv_type = rt_kv_type(m->kv_type);
    o.prepare.max_context = m->asked_context;
    return o;
}

static struct rt_file file_at(const char *path)
{
    struct stat st;
    if (!path || stat(path, &st)) return (struct rt_file){0};
    return (struct rt_file){.dev = (uint64_t)st.st_dev,
                            .ino = (uint64_t)st.st_ino,
                            .bytes = (uint64_t)st.st_size,
                            .mtime_s = (int64_t)st.st_mtim.tv_sec,
                            .mtime_ns = (int64_t)st.st_mtim.tv_nsec};
}

bool rt_model_replaced(const struct rt_model *m)
{
    struct rt_file now = file_at(m->path), was = m->file;
    return now.dev != was.dev || now.ino != was.ino || now.bytes != was.bytes ||
           now.mtime_s != was.mtime_s || now.mtime_ns != was.mtime_ns;
}

/* Keeps what is known of a model without loading it. file: as it was before it was opened. */
static void note(struct rt_model *m, const struct eng_model *model, struct rt_file file)
{
    const struct eng_model_info *info = eng_model_info(model);

    pthread_mutex_lock(&m->rt->models_lock);
    m->file = file;
    m->need = info->exec->packed_bytes + info->exec->scratch_bytes;
    m->context = info->context;
    m->embeds = info->pooling != ENG_POOL_NONE;
    m->tools = rt_tools_for(eng_model_template(model), m->tools_fallback);
    rt_sampling_for(m->path, &info->recommended, &m->asked_sampling, &m->sampling);
    if (info->fingerprint[0]) memcpy(m->fingerprint, info->fingerprint, sizeof m->fingerprint);
    pthread_mutex_unlock(&m->rt->models_lock);
}

int rt_model_measure(struct rt_model *m, struct eng_model **out, struct cn_error *err)
{
    struct eng_model_opts opts = opts_of(m);
    struct eng_model *model = NULL;
    struct cn_buf text;
    int rc = find_file(m, err);
    struct rt_file file = file_at(m->path);
    if (!rc) rc = check_context(m->path, m->asked_context, "models.context", err);
    if (rc) return rc;
    cn_buf_init(&text, 0);
    /* One that cannot be read is an error of the load. */
    if (m->chat_template && !read_template(m->chat_template, "", &text, NULL)) {
        opts.template_text = cn_buf_cstr(&text);
        opts.template_len = text.len;
    }
    rc = eng_model_measure(m->path, &opts, &model, err);
    cn_buf_fini(&text);
    if (rc) return rc;
    note(m, model, file);
    if (out)
        *out = model;
    else
        eng_model_unref(model);
    return 0;
}

int rt_model_open(struct rt_model *m, const struct rt_loading *how, struct eng_model **out,
                  struct cn_error *err)
{
    const char *prefix = m->rt->several ? "models" : "model";
    struct eng_model_opts opts = opts_of(m);
    char key[32];
    struct cn_buf text;
    snprintf(key, sizeof key, "%s.context", prefix);
    int rc = find_file(m, err);
    struct rt_file file = file_at(m->path);
    if (!rc) rc = check_context(m->path, m->asked_context, key, err);
    if (rc) return rc;
    snprintf(key, sizeof key, "%s.chat_template", prefix);
    cn_buf_init(&text, 0);
    if (m->chat_template) rc = read_template(m->chat_template, key, &text, err);
    opts.template_text = m->chat_template ? cn_buf_cstr(&text) : NULL;
    opts.template_len = text.len;
    opts.prepare.background = how->background;
    opts.prepare.stop = &m->group->loader_stop;
    opts.prepare.progress = how->progress;
    opts.prepare.progress_arg = how->progress_arg;
    if (!rc) rc = eng_model_open(m->path, &opts, out, err);
    cn_buf_fini(&text);
    if (!rc) note(m, *out, file);
    return rc;
}

/* ---- known to pool and scheduler ------------------------------------------------------------- */

static int add_space(struct rt_model *m, const struct eng_model_info *info, struct cn_error *err)
{
    static const enum kv_span span[] = {[KR_SPAN_ALL] = KV_SPAN_ALL,
                                        [KR_SPAN_WINDOW] = KV_SPAN_WINDOW,
                                        [KR_SPAN_CHUNK] = KV_SPAN_CHUNK,
                                        [KR_SPAN_BOTH] = KV_SPAN_ALL,
                                        [KR_SPAN_STATE] = KV_SPAN_STATE};
    const struct cfg *cfg = m->rt->cfg;
    uint32_t n = info->exec->n_groups;
    struct kv_group *groups = cn_calloc(n, sizeof *groups);
    if (!groups) return cn_fail(err, CN_ENOMEM, "out of memory for the pool");
    for (uint32_t g = 0; g < n; g++)
        groups[g] = (struct kv_group){.span = span[info->exec->groups[g].span],
                                      .tokens = info->exec->groups[g].window_tokens,
                                      .block_bytes = info->exec->groups[g].block_bytes};
    char id[80]; /* the index: two names may stand for one file */
    int len = snprintf(id, sizeof id, "%s/%d/%u", info->fingerprint, m->kv_type, m->index);
    struct kv_space_opts space = {.id = id,
                                  .id_len = (size_t)len,
                                  .block_tokens = (uint32_t)cfg->kv.block_tokens,
                                  .n_groups = n,
                                  .groups = groups,
                                  .longest = info->context,
                                  .chunk_tokens = (uint32_t)cfg->engine.max_batch_rows};
    int rc = kv_space_add(m->group->pool, &space, &m->space, err);
    free(groups);
    return rc;
}

int rt_attach(struct rt_model *m, struct cn_error *err)
{
    struct rt_group *g = m->group;
    const struct eng_model_info *info = eng_model_info(m->model);
    struct kr_prepare_opts step = opts_of(m).prepare;
    int rc = rt_memory_blocks_fit(info->exec, g->slab_bytes, err);
    if (!rc) rc = add_space(m, info, err);
    if (rc) return rc;
    bool embeds = info->pooling != ENG_POOL_NONE; /* no token comes after its prompts */
    struct sch_model_opts o = {.space = m->space,
                               .context = info->context + embeds,
                               .max_rows = step.max_rows,
                               .max_logit_rows = step.max_rows};
    rc = sch_model_add(g->sch, &o, &m->sch_model, err);
    if (!rc && kv_space_max_tokens(m->space, 0, 1) < 2) {
        struct kv_stats kv;
        kv_pool_stats(g->pool, &kv);
        sch_model_drop(g->sch, m->sch_model);
        rc = cn_fail(err, CN_ENOMEM, "the KV memory of %.1f MiB cannot hold a sequence of it",
                     (double)(kv.n_slabs * kv.slab_bytes) / 1048576);
    }
    if (rc) {
        kv_space_drop(m->space);
        m->space = NULL;
        return rc;
    }
    g->running[m->sch_model] = m;
    m->in_sch = true;
    m->base_ns = m->row_ns = 0;
    return 0;
}

int rt_detach(struct rt_model *m)
{
    int rc;
    if (m->in_sch) {
        if ((rc = sch_model_drop(m->group->sch, m->sch_model))) return rc;
        rt_host_leave(m->group, eng_model_exec(m->model));
        m->group->running[m->sch_model] = NULL;
        m->in_sch = false;
    }
    if (m->space && (rc = kv_space_drop(m->space))) return rc;
    m->space = NULL;
    return 0;
}

/* ---- the pool -------------------------------------------------------------------------------- */

static int make_pool(struct rt_group *g, const struct rt_memory_plan *plan, struct cn_error *err)
{
    int rc = kr_kv_mem_new(g->device, plan->slab_bytes, plan->n_slabs, &g->kv_mem, err);
    if (rc) return rc;
    g->slab_bytes = plan->slab_bytes;
    cn_metric_shift(g->rt->metrics, CN_M_kv_bytes_total, (double)plan->total_bytes);
    cn_group_set(g->rt->metrics, g->index, CN_GM_kv_bytes, plan->total_bytes);
    cn_group_set(g->rt->metrics, g->index, CN_GM_threads, kr_device_threads(g->device));
    rc = rt_group_blocks(g, plan, err);
    return rc ? rc : rt_host_init(g, err);
}

/* What the config gives the group, or the machine or its device has; 0: not known. What is the
 * machine's is divided as it was before any group took of it. */
static int memory_there(struct rt_group *g, struct rt_room *out, struct cn_error *err)
{
    struct rt *r = g->rt;
    uint64_t asked = cfg_group_memory(r->cfg, g->index, r->cfg->engine.memory_bytes);
    *out = rt_room(r->cfg, g->device);
    if (!out->own) out->bytes = r->there_bytes;
    uint64_t left = out->bytes - (out->own ? 0 : CN_MIN(out->bytes, r->given_bytes));
    if (asked && out->bytes && asked > left)
        return cn_fail_param(err, CN_ENOMEM, "engine.memory_bytes",
                             "engine.memory_bytes is %s, but the %s has only %s free",
                             cn_size(asked).text, out->whose, cn_size(left).text);
    if (asked)
        out->bytes = asked;
    else if (!out->own)
        out->bytes = cfg_group_memory(r->cfg, g->index, out->bytes);
    if (!out->own) r->given_bytes += out->bytes;
    return 0;
}

/* Where there are groups, an error about memory is one's, and the keys are its own. */
static void name_group(const struct rt_group *g, struct cn_error *err)
{
    static const char *const keys[][2] = {{"engine.memory_bytes", "groups.memory_bytes"},
                                          {"kv.memory_bytes", "groups.kv_memory_bytes"}};
    char text[sizeof err->message];
    if (!err || !g->rt->cfg->n_groups) return;
    for (size_t i = 0; i < CN_ARRAY_LEN(keys); i++) {
        size_t n = strlen(keys[i][0]);
        if (strcmp(err->param, keys[i][0])) continue;
        snprintf(err->param, sizeof err->param, "%s", keys[i][1]);
        if (strncmp(err->message, keys[i][0], n)) continue;
        snprintf(text, sizeof text, "%s%s", keys[i][1], err->message + n);
        memcpy(err->message, text, sizeof text);
    }
    cn_error_wrap(err, "the group %s", cfg_group_name(g->rt->cfg, g->index));
}

/* The only model is loaded by now: KV gets what it left. */
static int pool_for_one(struct rt_group *g, struct cn_error *err)
{
    const struct cfg *cfg = g->rt->cfg;
    const struct eng_model_info *info = eng_model_info(g->models[0]->model);
    struct rt_memory_plan plan;
    struct rt_room room = rt_room(cfg, g->device);
    uint64_t left = room.bytes, need = g->models[0]->need;
    bool given = room.own;
    if (cfg->engine.memory_bytes) {
        if (cfg->engine.memory_bytes <= need)
            return cn_fail_param(
                err, CN_ENOMEM, "engine.memory_bytes",
                "engine.memory_bytes is %s, and the model takes %s for weights and scratch alone",
                cn_size(cfg->engine.memory_bytes).text, cn_size(need).text);
        uint64_t mine = cfg->engine.memory_bytes - need;
        given |= !left || mine <= left;
        left = left ? CN_MIN(mine, left) : mine;
    }
    int rc = rt_memory_for(cfg, info, left, given, &plan, err);
    g->budget = UINT64_MAX;
    return rc ? rc : make_pool(g, &plan, err);
}

/* The least memory for models next to the KV memory: all pinned ones, and the largest other one
 * that fits with them. */
static uint64_t weights_at_once(const struct rt_group *g, uint64_t there)
{
    uint64_t pinned = 0, largest = 0;
    for (size_t i = 0; i < g->n_models; i++)
        if (g->models[i]->pin) pinned += g->models[i]->need;
    for (size_t i = 0; i < g->n_models; i++) {
        const struct rt_model *m = g->models[i];
        if (!m->pin && pinned + m->need < there) largest = CN_MAX(largest, m->need);
    }
    return pinned + largest;
}

/* Several models, none of which is loaded. */
struct measured {
    struct eng_model **models; /* by their index; NULL: it could not be measured */
    struct rt_memory_ask *asks;
    size_t n; /* asks */
    struct rt_room room;
    struct rt_memory_plan plan;
};

/* All models share the KV memory; the rest is their budget. */
static int plan_for_several(struct rt_group *g, struct measured *s, struct cn_error *err)
{
    const struct cfg *cfg = g->rt->cfg;
    uint64_t want = cfg_group_kv_memory(cfg, g->index), there;
    int rc = memory_there(g, &s->room, err);
    if (rc) return rc;
    there = s->room.bytes;
    uint64_t weights = weights_at_once(g, there ? there : UINT64_MAX);
    if (there && weights >= there)
        return cn_fail_param(err, CN_ENOMEM, "engine.memory_bytes",
                             "there are %s of memory, and the pinned models take %s for "
                             "weights and scratch alone",
                             cn_size(there).text, cn_size(weights).text);
    if (want && there && want >= there)
        return cn_fail_param(err, CN_ENOMEM, "kv.memory_bytes",
                             "kv.memory_bytes is %s, and there are %s for weights, scratch and "
                             "KV together",
                             cn_size(want).text, cn_size(there).text);
    /* With a given size, a model that does not fit next to it is refused when it is loaded. */
    rc = rt_memory_plan_for(s->asks, s->n, (uint32_t)cfg->kv.block_tokens,
                            (uint32_t)cfg->scheduler.max_running, want,
                            there && !want ? there - weights : 0, false, &s->plan, err);
    if (!rc) g->budget = there ? there - CN_MIN(there, s->plan.total_bytes) : UINT64_MAX;
    return rc;
}

/* Measures all models. One that cannot be measured is logged, and tried again when a request asks
 * for it. If none can be measured: the first one's error. */
static int measure_all(struct rt_group *g, struct measured *s, struct cn_error *err)
{
    struct cn_error first = {0};
    for (size_t i = 0; i < g->n_models; i++) {
        struct cn_error e = {0};
        if (rt_model_measure(g->models[i], &s->models[i], &e)) {
            if (!first.code) first = e;
            rt_model_failed(g->models[i], &e);
            continue;
        }
        const struct eng_model_info *info = eng_model_info(s->models[i]);
        s->asks[s->n++] = (struct rt_memory_ask){info->exec, info->context};
    }
    if (s->n) return 0;
    if (err) *err = first;
    return first.code;
}

/* Whether m fits into the budget together with the pinned models. */
static bool can_be_loaded(const struct rt_model *m)
{
    const struct rt_group *g = m->group;
    uint64_t least = m->need;
    for (size_t i = 0; i < g->n_models; i++)
        if (g->models[i]->pin && g->models[i] != m) least += g->models[i]->need;
    return least <= g->budget;
}

static void measured_fini(struct rt_group *g, struct measured *s)
{
    for (size_t i = 0; s->models && i < g->n_models; i++)
        eng_model_unref(s->models[i]);
    free(s->models);
    free(s->asks);
}

/* Sizes KV memory and budget for several models. */
static int weigh(struct rt_group *g, struct measured *s, struct cn_error *err)
{
    s->models = cn_calloc(g->n_models, sizeof *s->models);
    s->asks = cn_calloc(g->n_models, sizeof *s->asks);
    int rc = s->models && s->asks ? 0 : cn_fail(err, CN_ENOMEM, "out of memory for the runtime");
    if (!rc) rc = measure_all(g, s, err);
    if (!rc) rc = plan_for_several(g, s, err);
    if (rc) name_group(g, err);
    return rc;
}

/* Logs the models that can never be loaded now, not when the first request is refused. */
static void warn_of_large(const struct rt_group *g)
{
    for (size_t i = 0; i < g->n_models; i++)
        if (g->models[i]->need && !can_be_loaded(g->models[i]))
            cn_log(CN_LOG_WARN, "engine",
                   "%s takes %.1f MiB for weights and scratch, and there are %.1f MiB for all "
                   "models: its requests are refused%s",
                   g->models[i]->id, (double)g->models[i]->need / 1048576,
                   (double)g->budget / 1048576,
                   g->models[i]->need > g->budget ? "" : " while the pinned ones are there");
}

static int size_for_several(struct rt_group *g, struct cn_error *err)
{
    struct measured s = {0};
    int rc = weigh(g, &s, err);
    if (!rc) rc = make_pool(g, &s.plan, err);
    if (!rc) warn_of_large(g);
    measured_fini(g, &s);
    return rc;
}

/* Finds the longest sequence from a pool without memory. */
static int weigh_one(struct rt_model *m, const struct eng_model_info *info, uint64_t slab_bytes,
                     struct rt_model_weight *out, struct cn_error *err)
{
    uint32_t block = (uint32_t)m->rt->cfg->kv.block_tokens;
    *out = (struct rt_model_weight){.bytes = m->need,
                                    .context = info->context,
                                    .kv_type = opts_of(m).prepare.kv_type,
                                    .window_bytes =
                                        eng_sequence_bytes(info->exec, block, info->context),
                                    .fits = can_be_loaded(m)};
    if (rt_memory_blocks_fit(info->exec, slab_bytes, NULL)) return 0;
    int rc = add_space(m, info, err);
    if (rc) return rc;
    out->max_tokens = CN_MIN(kv_space_max_tokens(m->space, 0, 1), info->context);
    kv_space_drop(m->space);
    m->space = NULL;
    return 0;
}

int rt_group_weigh(struct rt_group *g, struct rt_weights *out, struct rt_model_weight *each,
                   struct cn_error *err)
{
    struct measured s = {0};
    int rc = rt_group_device(g, err);
    if (!rc) rc = weigh(g, &s, err);
    if (!rc) rc = rt_group_blocks(g, &s.plan, err);
    for (size_t i = 0; !rc && i < g->n_models; i++)
        if (s.models[i])
            rc = weigh_one(g->models[i], eng_model_info(s.models[i]), s.plan.slab_bytes,
                           &each[g->models[i]->index], err);
    *out = (struct rt_weights){
        .there_bytes = s.room.bytes, .own = s.room.own, .budget_bytes = g->budget, .kv = s.plan};
    measured_fini(g, &s);
    return rc;
}

/* ---- the scheduler --------------------------------------------------------------------------- */

static int make_scheduler(struct rt_group *g, struct cn_error *err)
{
    const struct cfg *cfg = g->rt->cfg;
    struct kv_stats kv;
    struct sch_opts o = {.pool = g->pool,
                         .stepper = rt_stepper_interface(&g->stepper),
                         .cb = {.arg = g,
                                .on_token = rt_on_token,
                                .on_choice_end = rt_on_choice_end,
                                .on_end = rt_on_end},
                         .max_running = (uint32_t)cfg->scheduler.max_running,
                         .max_queue = (uint32_t)cfg->scheduler.queue_requests,
                         .max_queue_tokens = (uint64_t)cfg->scheduler.queue_tokens,
                         .step_target_ns = (uint64_t)(cfg->engine.step_target_ms * 1e6),
                         .step_stretch = cfg->engine.step_stretch,
                         .short_prompt = (uint32_t)cfg->engine.short_prompt,
                         .max_choices = (uint32_t)cfg->limits.max_n,
                         .shared = g->rt->n_groups > 1};
    if (cfg->scheduler.speculation == CFG_SPECULATION_AUTO) o.speculation.max_draft = RT_MAX_DRAFT;
    int rc = sch_new(&o, &g->sch, err);
    if (rc) return rc;
    kv_pool_stats(g->pool, &kv);
    g->tenants.kv_bytes = kv.n_slabs * kv.slab_bytes;
    g->tenants.party = cfg_roll_join(g->rt->first_tenants->roll);
    rc = rt_tenants_apply(g, cfg_tenants_ref(g->rt->first_tenants));
    return rc ? cn_fail(err, rc, "the tenants cannot be set up") : 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* began_ns: when the load began. */
static void set_loaded(struct rt_model *m, uint64_t began_ns)
{
    struct rt_group *g = m->group;
    const struct eng_model_info *info = eng_model_info(m->model);
    pthread_mutex_lock(&g->rt->models_lock);
    m->bytes = m->need;
    m->used_ns = cn_now_ns();
    rt_model_set_state(m, RT_LOADED);
    pthread_mutex_unlock(&g->rt->models_lock);
    cn_metric_add(g->rt->metrics, CN_M_model_loads, 1);
    cn_metric_observe(g->rt->metrics, CN_H_model_load, cn_now_ns() - began_ns);
    cn_model_add(g->rt->metrics, m->index, CN_MM_loads, 1);
    double kv_bytes = (double)g->tenants.kv_bytes;
    uint32_t block = (uint32_t)g->rt->cfg->kv.block_tokens;
    uint64_t one = eng_sequence_bytes(info->exec, block, info->context);
    struct cn_buf text;
    cn_buf_init(&text, 0);
    rt_memory_text(info->exec, block, &text);
    cn_log(CN_LOG_INFO, "engine", "%s: on %s, weights %.1f MiB, scratch %.1f MiB%s", m->id,
           kr_device_path(m->group->device), (double)info->exec->packed_bytes / 1048576,
           (double)info->exec->scratch_bytes / 1048576, cn_buf_cstr(&text));
    if (one)
        cn_log(CN_LOG_INFO, "engine",
               "%s: a window of %llu tokens takes %.2f MiB; KV memory %.1f MiB "
               "holds %.1f of them",
               m->id, (unsigned long long)info->context, (double)one / 1048576, kv_bytes / 1048576,
               kv_bytes / (double)one);
    if (kv_bytes < (double)one)
        cn_log(CN_LOG_WARN, "engine",
               "%s: the KV memory holds %llu tokens at most, and the window has "
               "%llu: longer requests are refused",
               m->id, (unsigned long long)kv_space_max_tokens(m->space, 0, 1),
               (unsigned long long)info->context);
    cn_buf_fini(&text);
}

static int open_one(struct rt_group *g, const struct rt_loading *how, struct cn_error *err)
{
    struct rt_model *m = g->models[0];
    uint64_t began = cn_now_ns();
    int rc = rt_model_open(m, how, &m->model, err);
    if (!rc) rc = pool_for_one(g, err);
    if (!rc) rc = make_scheduler(g, err);
    if (!rc) rc = rt_attach(m, err);
    if (!rc) set_loaded(m, began);
    return rc;
}

/* A model that cannot be preloaded is tried again when a request asks for it. */
static void preload(struct rt_model *m, const struct rt_loading *how)
{
    struct rt_group *g = m->group;
    struct cn_error err = {0};
    uint64_t used = 0, began = cn_now_ns();
    for (size_t i = 0; i < g->n_models; i++)
        used += g->models[i]->bytes;
    int rc = 0;
    if (used > g->budget || m->need > g->budget - used)
        rc =
            cn_fail(&err, CN_ENOMEM,
                    "it takes %.1f MiB, and %.1f of the %.1f MiB for all models "
                    "are taken",
                    (double)m->need / 1048576, (double)used / 1048576, (double)g->budget / 1048576);
    if (!rc) rc = rt_model_open(m, how, &m->model, &err);
    if (!rc) rc = rt_attach(m, &err);
    if (!rc) {
        set_loaded(m, began);
        return;
    }
    eng_model_unref(m->model);
    m->model = NULL;
    rt_model_failed(m, &err);
}

int rt_group_open(struct rt_group *g, const struct rt_opts *o, struct cn_error *err)
{
    struct rt_loading how = {.progress = o->progress, .progress_arg = o->progress_arg};
    int rc = rt_group_device(g, err);
    if (rc) return rc;
    if (!g->rt->several) return open_one(g, &how, err);
    rc = size_for_several(g, err);
    if (!rc) rc = make_scheduler(g, err);
    for (size_t i = 0; !rc && i < g->n_models; i++)
        if (g->models[i]->preload && g->models[i]->state == RT_UNLOADED)
            preload(g->models[i], &how);
    return rc;
}
