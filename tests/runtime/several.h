/* Several models of the oracle in one runtime, for tests: four of different families. */
#ifndef TESTS_RUNTIME_SEVERAL_H
#define TESTS_RUNTIME_SEVERAL_H

#include "runtime/rt.h"
#include "tests/runtime/harness.h"

#define KV_BYTES (8u << 20)
#define SECOND   1000000000ull

enum { LLAMA, GEMMA, QWEN, MAMBA, N_FILES };
extern char sv_paths[N_FILES][4096];

/* Group setup: ends the program with 77 (skipped) when they are not there. */
int sv_find_files(void **state);
/* list[i] is completed to the i-th file. memory: engine.memory_bytes; wait_s:
 * engine.swap_wait_s. */
void sv_start(struct h *h, struct rt_model_opts *list, size_t n, uint64_t memory, double wait_s);
/* The same for two tenants; stay_s: engine.min_stay_s. */
void sv_start_two(struct h *h, struct rt_model_opts *list, size_t n, uint64_t memory, double wait_s,
                  double stay_s);
/* CONIFER_LENDS_AT_LOAD: on a device that can do so (async), slabs change hands at loads only.
 * CONIFER_GROUPS: all of them run in the second of two engine groups, with one thread; the first
 * one has a model of its own, behind the others in the list, that nobody asks for. */
/* What a model takes, as its own plan says. */
uint64_t sv_need(int file);
enum rt_model_state sv_state(struct h *h, size_t i);
/* Waits until what was found broken is out. */
void sv_wait_unloaded(struct h *h, size_t i);
struct rt_event *sv_take(struct h *h);
/* Waits for a model; returns the event's code. With nothing else going on. */
int sv_get(struct h *h, size_t i, char message[512]);
void sv_release(struct h *h, size_t i);
/* Eight tokens of a prompt that any of the vocabularies has. */
void sv_ask(struct h *h, size_t i, uint64_t id, uint64_t max_tokens);
/* Everything is given back: no model is held, nobody waits, no block is in use. What is being
 * loaded or unloaded for one who gave up comes to its end. */
void sv_check_idle(struct h *h);

struct answer {
    uint32_t ids[600];
    size_t n;
};
/* Takes events until request `id` has ended; collect: its tokens too. */
void sv_collect(struct h *h, uint64_t id, struct answer *a);
void sv_wait_end(struct h *h);

#endif
