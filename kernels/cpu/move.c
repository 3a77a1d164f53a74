/* move: blocks to and from other memory of the host, on all threads. Engine thread. */
#include "kernels/cpu/cpu.h"

#include <string.h>
#include <sys/mman.h>

#define PIECE (256u << 10)

int kr_cpu_host_new(struct kr_device *d, uint64_t bytes, void **out, struct cn_error *err)
{
    void *p = bytes > SIZE_MAX / 2 ? MAP_FAILED
                                   : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return cn_fail(err, CN_ENOMEM, "out of memory: %s for blocks beside the KV memory",
                       cn_size(bytes).text);
    *out = p;
    return 0;
}

void kr_cpu_host_free(struct kr_device *d, void *host, uint64_t bytes)
{
    munmap(host, bytes);
}

struct moving {
    const struct kr_cpu_exec *x;
    const struct kr_cpu_mem *mem;
    const struct kr_move *moves;
    uint32_t pieces; /* that each block is cut into */
    bool out;
};

static void move_piece(void *arg, uint32_t i)
{
    const struct moving *w = arg;
    const struct kr_move *v = &w->moves[i / w->pieces];
    uint64_t bytes = w->x->kv_groups[v->group].block_bytes;
    uint64_t at = (uint64_t)(i % w->pieces) * PIECE;
    if (at >= bytes) return;
    uint8_t *block = kr_cpu_block(w->x, w->mem, v->group, v->block) + at, *host = v->host;
    bytes = CN_MIN(bytes - at, (uint64_t)PIECE);
    memcpy(w->out ? host + at : block, w->out ? block : host + at, bytes);
}

int kr_cpu_kv_move(struct kr_exec *base, struct kr_kv_mem *m, const struct kr_move *moves,
                   uint32_t n, bool out, uint64_t *ticket, struct cn_error *err)
{
    const struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    uint64_t largest = 1, bytes = 0, began = cn_now_ns();
    for (uint32_t g = 0; g < x->base.info.n_groups; g++)
        largest = CN_MAX(largest, x->kv_groups[g].block_bytes);
    struct moving w = {x, CN_CONTAINER(m, struct kr_cpu_mem, base), moves,
                       (uint32_t)((largest + PIECE - 1) / PIECE), out};
    if (n > UINT32_MAX / w.pieces) return cn_fail(err, CN_ELIMIT, "%u blocks at once", n);
    kr_device_parallel(&x->dev->base, n * w.pieces, move_piece, &w);
    for (uint32_t i = 0; i < n; i++)
        bytes += x->kv_groups[moves[i].group].block_bytes;
    kr_device_moved(&x->dev->base, bytes, cn_now_ns() - began);
    *ticket = 1;
    return 0;
}

bool kr_cpu_moved(struct kr_exec *x, uint64_t ticket, bool wait)
{
    return true;
}
