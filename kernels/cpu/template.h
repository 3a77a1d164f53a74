/* What the register tiles of every ISA are written with: templates, functions that are always
 * inlined and get their sizes as constants. */
#ifndef KERNELS_CPU_TEMPLATE_H
#define KERNELS_CPU_TEMPLATE_H

#include <stdint.h>

#if !defined(__clang__)
#define UNROLL _Pragma("GCC unroll 16")
#elif defined(__aarch64__)
#define UNROLL _Pragma("clang loop unroll(full)") /* "unroll" alone leaves some as they are */
#else
#define UNROLL _Pragma("unroll")
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Unpacks a run of blocks of a group to a panel; UNPACK makes one of a file's unpack_blocks. */
typedef void unpack_fn(const uint8_t *headers, const uint8_t *quants, uint32_t blocks,
                       uint8_t *panel);
#define UNPACK(name, bits, header)                                                                 \
    static void name(const uint8_t *headers, const uint8_t *quants, uint32_t blocks,               \
                     uint8_t *panel)                                                               \
    {                                                                                              \
        unpack_blocks(headers, quants, blocks, bits, header, panel);                               \
    }
/* Those that every ISA with panels has. */
/* clang-format off */
#define UNPACK_MOST                                 \
    UNPACK(unpack5_d, 5, KR_HDR_D)                  \
    UNPACK(unpack5_dm, 5, KR_HDR_DM)                \
    UNPACK(unpack4_k, 4, KR_HDR_K)                  \
    UNPACK(unpack5_k, 5, KR_HDR_K)                  \
    UNPACK(unpack6_k, 6, KR_HDR_K6)                 \
    UNPACK(unpack2_k, 2, KR_HDR_K2)                 \
    UNPACK(unpack3_k, 3, KR_HDR_K6)                 \
    UNPACK(unpack_tq, 2, KR_HDR_T)                  \
    UNPACK(unpack_odd, KR_BITS_ODD, KR_HDR_KX)      \
    UNPACK(unpack_iq4_kx, KR_BITS_IQ4, KR_HDR_KX)
/* clang-format on */

/* F(name, bits, header) of each way in which quants are packed (pack.h). */
#define EACH_PACKING(F)                                                                            \
    F(q4_d, 4, KR_HDR_D)                                                                           \
    F(q4_dm, 4, KR_HDR_DM)                                                                         \
    F(q5_d, 5, KR_HDR_D)                                                                           \
    F(q5_dm, 5, KR_HDR_DM)                                                                         \
    F(q8_d, 8, KR_HDR_D)                                                                           \
    F(q4_k, 4, KR_HDR_K)                                                                           \
    F(q5_k, 5, KR_HDR_K)                                                                           \
    F(q6_k, 6, KR_HDR_K6)                                                                          \
    F(q2_k, 2, KR_HDR_K2)                                                                          \
    F(q3_k, 3, KR_HDR_K6)                                                                          \
    F(tq_t, 2, KR_HDR_T)                                                                           \
    F(iq4_d, KR_BITS_IQ4, KR_HDR_D)                                                                \
    F(iq4_kx, KR_BITS_IQ4, KR_HDR_KX)                                                              \
    F(odd_kx, KR_BITS_ODD, KR_HDR_KX)                                                              \
    F(fp4_e, KR_BITS_FP4, KR_HDR_E)

#endif
