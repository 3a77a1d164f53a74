/* server: everything that touches a socket. HTTP, API dialects, keys, health, metrics page.
 *
 *     srv_new(&opts, &s, &err);   sockets bound: a taken port is told before the model is loaded
 *     rt_new(...);
 *     srv_run(s, rt, &err);       serves on the calling thread until drained
 *     rt_free(rt);                ends what still runs; its events go to the server's mailbox
 *
 * srv_free(s); */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "base/base.h"
#include "config/config.h"
#include "runtime/runtime.h"

struct srv;

struct srv_opts {
    const struct cfg *cfg;       /* borrowed for the server's life, checked with cfg_check */
    struct cn_metrics *metrics;  /* likewise; the same as the runtime's */
    const char *version;         /* static */
    struct cfg_tenants *tenants; /* likewise; NULL: those of cfg */
    struct cfg_source *source;   /* read again at SIGHUP; borrowed; NULL: tenants do not change */
    bool quiet;                  /* no log line about where it listens */
    void (*ready)(void *arg); /* on the calling thread, once connections are taken; may be NULL */
    void *ready_arg;
};
/* Opens and binds the sockets (or takes systemd's). Errors: CN_EIO with the address. */
int srv_new(const struct srv_opts *opts, struct srv **out, struct cn_error *err);
/* The TCP port bound, 0 when there is none. */
int srv_port(const struct srv *s);
/* Serves until SIGTERM, SIGINT or srv_stop, and the drain after it. 0 after a drain; CN_EINTERNAL
 * when the engine failed; CN_EBUSY when it did not answer a cancel (rt_free would wait for ever),
 * or when the file with the tenants is still being read. */
int srv_run(struct srv *s, struct rt *rt, struct cn_error *err);
/* After srv_run gave CN_EBUSY: whether it ended because the engine was stuck for
 * engine.stuck_exit_s. The process is then to end with SRV_EXIT_STUCK (EX_SOFTWARE). */
#define SRV_EXIT_STUCK 70
bool srv_stuck(const struct srv *s);
/* As one SIGTERM: drain; a second call ends at once. Thread-safe. */
void srv_stop(struct srv *s);
/* Takes NULL. The runtime must be gone, or never have been given. */
void srv_free(struct srv *s);

/* Tells systemd ("READY=1", "EXTEND_TIMEOUT_USEC=..."); nothing without it. Any thread. */
void srv_notify(const char *state);

/* ---- keys (key.c) ---------------------------------------------------------------------------- */

#define SRV_KEY_PREFIX "cnf_"
#define SRV_KEY_LEN    47 /* "cnf_" and 43 characters of base64url: 256 random bits */
/* A new key and its line for conifer.yaml ("sha256:" and 64 hex digits). */
void srv_key_new(char key[SRV_KEY_LEN + 1], char line[72]);
void srv_key_hash(const char *key, size_t n, uint8_t out[32]);

#endif
