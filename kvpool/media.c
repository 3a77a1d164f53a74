/* What stands for a medium in a prompt: its ids, and ranges that are not cut. */
#include "kvpool/kvpool.h"

#include <string.h>

void kv_media_ids(const uint8_t digest[KV_DIGEST_BYTES], uint64_t n, uint32_t *out)
{
    uint32_t words[KV_DIGEST_BYTES / 4];

    for (uint32_t i = 0; i < CN_ARRAY_LEN(words); i++) {
        const uint8_t *b = digest + 4 * (size_t)i;

        words[i] =
            KV_MEDIA | b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    }
    for (uint64_t i = 0; i < n; i++)
        out[i] = words[i % CN_ARRAY_LEN(words)];
}

const struct kv_range *kv_range_cut(const struct kv_range *v, uint32_t n, uint64_t pos)
{
    uint32_t lo = 0, hi = n; /* the last one that begins before pos is at lo - 1 */

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (v[mid].first < pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo && pos - v[lo - 1].first < v[lo - 1].n ? &v[lo - 1] : NULL;
}
