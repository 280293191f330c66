/* CRC-32C (Castagnoli, reflected 0x82F63B78): SSE4.2 or ARMv8 instructions where the processor has
 * them, slicing-by-8 tables elsewhere.
 *
 * The crc32 instruction has a latency of three cycles and a throughput of one, so three lanes run
 * side by side over neighbouring blocks; their sums are joined by moving the first ones over as
 * many zero bytes as the later blocks have (a linear map of GF(2), kept as four tables of 256). */
#ifndef KOHORT_CRC32C_H
#define KOHORT_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KH_POLYNOMIAL 0x82F63B78u
#define KH_LONG 4096  /* bytes a lane in the long loop */
#define KH_SHORT 192  /* bytes a lane in the short loop */

static uint32_t kh_slices[8][256];
static uint32_t kh_over_long[4][256];
static uint32_t kh_over_short[4][256];

static uint64_t kh_load64(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static uint32_t kh_crc_tables(uint32_t crc, const uint8_t *p, size_t size) {
    while (size >= 8) {
        uint64_t word = kh_load64(p) ^ crc;
        crc = kh_slices[7][word & 0xff] ^ kh_slices[6][(word >> 8) & 0xff]
            ^ kh_slices[5][(word >> 16) & 0xff] ^ kh_slices[4][(word >> 24) & 0xff]
            ^ kh_slices[3][(word >> 32) & 0xff] ^ kh_slices[2][(word >> 40) & 0xff]
            ^ kh_slices[1][(word >> 48) & 0xff] ^ kh_slices[0][word >> 56];
        p += 8;
        size -= 8;
    }
    while (size--)
        crc = (crc >> 8) ^ kh_slices[0][(crc ^ *p++) & 0xff];
    return crc;
}

static uint32_t kh_move(uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff]
         ^ table[2][(crc >> 16) & 0xff] ^ table[3][crc >> 24];
}

/* The map "append `size` zero bytes", built from its images of the 32 single bits. */
static void kh_build_move(uint32_t table[4][256], size_t size) {
    static const uint8_t zeros[KH_LONG];
    for (int byte = 0; byte < 4; byte++) {
        uint32_t image[8];
        for (int bit = 0; bit < 8; bit++)
            image[bit] = kh_crc_tables(1u << (8 * byte + bit), zeros, size);
        for (int value = 0; value < 256; value++) {
            uint32_t sum = 0;
            for (int bit = 0; bit < 8; bit++)
                if (value >> bit & 1)
                    sum ^= image[bit];
            table[byte][value] = sum;
        }
    }
}

#if (defined(__x86_64__) || defined(__amd64__)) && (defined(__GNUC__) || defined(__clang__))
#include <nmmintrin.h>
#define KH_HARDWARE "sse4.2"
#if defined(__clang__) && __clang_major__ >= 14
#define KH_SSE "sse4.2,crc32" /* clang 14 made the instruction a feature of its own */
#else
#define KH_SSE "sse4.2"
#endif
#define KH_TARGET __attribute__((target(KH_SSE)))
#define KH_STEP64(crc, word) _mm_crc32_u64((crc), (word))
#define KH_STEP8(crc, byte) _mm_crc32_u8((uint32_t)(crc), (byte))
static int kh_detect(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") != 0;
}
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define KH_HARDWARE "armv8-crc"
#define KH_TARGET
#define KH_STEP64(crc, word) __crc32cd((uint32_t)(crc), (word))
#define KH_STEP8(crc, byte) __crc32cb((uint32_t)(crc), (byte))
static int kh_detect(void) { return 1; }
#endif

#ifdef KH_HARDWARE
/* One run of three lanes of `lane` bytes each; `lane` is a multiple of eight. */
#define KH_LANES(lane, over)                                                                       \
    while (size >= 3 * (lane)) {                                                                   \
        uint64_t one = crc, two = 0, three = 0;                                                    \
        for (size_t i = 0; i < (lane); i += 8) {                                                   \
            one = KH_STEP64(one, kh_load64(p + i));                                                \
            two = KH_STEP64(two, kh_load64(p + (lane) + i));                                       \
            three = KH_STEP64(three, kh_load64(p + 2 * (lane) + i));                               \
        }                                                                                          \
        crc = kh_move(over, (uint32_t)one) ^ (uint32_t)two;                                        \
        crc = kh_move(over, crc) ^ (uint32_t)three;                                                \
        p += 3 * (lane);                                                                           \
        size -= 3 * (lane);                                                                        \
    }

KH_TARGET static uint32_t kh_crc_hardware(uint32_t crc, const uint8_t *p, size_t size) {
    KH_LANES(KH_LONG, kh_over_long)
    KH_LANES(KH_SHORT, kh_over_short)
    uint64_t sum = crc;
    while (size >= 8) {
        sum = KH_STEP64(sum, kh_load64(p));
        p += 8;
        size -= 8;
    }
    crc = (uint32_t)sum;
    while (size--)
        crc = KH_STEP8(crc, *p++);
    return crc;
}
#endif

static uint32_t (*kh_crc_step)(uint32_t, const uint8_t *, size_t) = kh_crc_tables;

static uint32_t kh_doublings[64]; /* x^(2^n) modulo the polynomial; x^0 is the highest bit */

static uint32_t kh_times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a & 0x80000000u)
            product ^= b;
        b = (b >> 1) ^ (KH_POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

/* Fills the tables and chooses the path; called once, when the module is imported. */
static const char *kh_crc_init(void) {
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (KH_POLYNOMIAL & (0u - (crc & 1)));
        kh_slices[0][value] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = kh_slices[slice - 1][value];
            kh_slices[slice][value] = (crc >> 8) ^ kh_slices[0][crc & 0xff];
        }
    kh_doublings[0] = 0x40000000u;
    for (int n = 1; n < 64; n++)
        kh_doublings[n] = kh_times(kh_doublings[n - 1], kh_doublings[n - 1]);
    kh_build_move(kh_over_long, KH_LONG);
    kh_build_move(kh_over_short, KH_SHORT);
#ifdef KH_HARDWARE
    if (kh_detect()) {
        kh_crc_step = kh_crc_hardware;
        return KH_HARDWARE;
    }
#endif
    return "tables";
}

static uint32_t kh_crc32c(uint32_t crc, const uint8_t *p, size_t size) {
    return ~kh_crc_step(~crc, p, size);
}

/* A sum in pieces, not inverted: that of a run which begins with `raw` (0: nothing before it). */
static __attribute__((unused)) uint32_t kh_crc_on(uint32_t raw, const uint8_t *p, size_t size) {
    return kh_crc_step(raw, p, size);
}

/* What `raw` becomes when `size` zero bytes follow, in some fifty steps for each bit of `size`. */
static __attribute__((unused)) uint32_t kh_crc_moved(uint32_t raw, size_t size) {
    for (int n = 3; size; n++, size >>= 1)
        if (size & 1)
            raw = kh_times(kh_doublings[n], raw);
    return raw;
}

static uint32_t kh_crc32c_portable(uint32_t crc, const uint8_t *p, size_t size) {
    return ~kh_crc_tables(~crc, p, size);
}

#endif
