/* Fuzz target: the YAML reader, the rules between keys, and one key set from text. */
#include "config/config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* What any accepted file must leave behind. */
static void check_loaded(const struct cfg *c)
{
    cn_assert(c->server.port >= 0 && c->server.port <= 65535);
    cn_assert(c->kv.block_tokens == 16 || c->kv.block_tokens == 32);
    cn_assert(c->server.idle_timeout_s > 0 && c->server.idle_timeout_s <= 86400);
    cn_assert(c->model.kv_type >= CFG_KV_F16 && c->model.kv_type <= CFG_KV_Q4_0);
    for (size_t i = 0; i < c->n_tenants; i++) {
        cn_assert(c->tenants[i].name && cfg_model_name_ok(c->tenants[i].name));
        cn_assert(c->tenants[i].key_hashes);
        cn_assert(c->tenants[i].kv_share >= 0 && c->tenants[i].kv_share <= 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cfg c;
    struct cn_error err = {0};
    char *text;

    cn_assert(cfg_init(&c, &err) == CN_OK);
    int rc = cfg_load_text(&c, "fuzz.yaml", (const char *)data, n, &err);
    cn_assert(rc == err.code);
    cn_assert((rc != 0) == (err.message[0] != '\0'));
    cn_assert((rc != 0) == (c.faults.count > 0) || rc == CN_ELIMIT);
    if (rc == CN_OK) check_loaded(&c);
    size_t before = c.faults.count;
    rc = cfg_check(&c, &err);
    cn_assert((rc != 0) == (c.faults.count > before));
    text = strndup((const char *)data, n);
    if (text) {
        char *equals = strchr(text, '=');

        if (equals) {
            *equals = '\0';
            (void)cfg_set(&c, text, equals + 1, &err);
        }
        (void)cfg_is_loopback(text);
        (void)cfg_model_name_ok(text);
    }
    free(text);
    cfg_fini(&c);
    return 0;
}
