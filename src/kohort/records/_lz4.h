/* LZ4 blocks: the way out. The format is lz4's own ("LZ4 block format", 1.6); what reads it is the
 * library, here and everywhere else.
 *
 * A block is at most 64 KB, so that places in it are 16 bits wide and the table of those where a
 * run of five bytes was last seen fits the nearest cache. Greedy: the first match that the table
 * names is taken. A block without any is walked through in growing steps.
 *
 * Where the next search begins is known only when a match was fetched and its end found, some
 * forty cycles later. So a match is taken to be as long as the one before it, which a processor
 * that runs ahead checks afterwards: what comes in words or columns of one width is a quarter
 * faster for it, and nothing else is slower by more than a few hundredths (docs/adr/0017).
 *
 * Nothing is read outside the block: the search ends 24 bytes before its end, and 8 bytes are
 * compared and 16 copied at once. `kh_lz4_room` says how much may be written. */
#ifndef KOHORT_LZ4_H
#define KOHORT_LZ4_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "_crc32c.h" /* kh_load64 */

#define KH_LZ4_BLOCK 65536u
#define KH_LZ4_BITS 14
#define KH_LZ4_TAIL 24     /* the format asks for 12 bytes from the last match's start on */
#define KH_LZ4_LITERALS 5  /* so many bytes at the end are literals */
#define KH_LZ4_LEAST 4     /* the shortest match */
#define KH_LZ4_PATIENCE 64 /* misses before each longer step */

/* The first five bytes of `word` to a place in the table. */
static inline uint32_t kh_lz4_slot(uint64_t word) {
    return (uint32_t) (((word << 24) * 0x9E3779B97F4A7C15u) >> (64 - KH_LZ4_BITS));
}

/* How many bytes are equal at `a` and at `b`, which is before it; none at `end` or behind it. */
static inline size_t kh_lz4_same(const uint8_t *a, const uint8_t *b, const uint8_t *end) {
    const uint8_t *start = a;
    while (a + 8 <= end) {
        uint64_t differ = kh_load64(a) ^ kh_load64(b);
        if (differ) return (size_t) (a - start) + (size_t) (__builtin_ctzll(differ) >> 3);
        a += 8;
        b += 8;
    }
    while (a < end && *a == *b) {
        a++;
        b++;
    }
    return (size_t) (a - start);
}

/* What of a length does not fit into its half of the token. Rare, so kept out of the loop. */
static __attribute__((noinline)) uint8_t *kh_lz4_rest(uint8_t *out, size_t left) {
    for (; left >= 255; left -= 255) *out++ = 255;
    *out++ = (uint8_t) left;
    return out;
}

/* The most bytes that `kh_lz4_block` writes for `size`, its careless copies included. */
static inline size_t kh_lz4_room(size_t size) {
    return size + size / 255 + 48;
}

/* Compresses `size` bytes, at most a block; how many they take: perhaps more than they were. */
static size_t kh_lz4_block(const uint8_t *data, size_t size, uint8_t *out) {
    uint16_t seen[1 << KH_LZ4_BITS];
    const uint8_t *const end = data + size;
    const uint8_t *const last = size > KH_LZ4_TAIL ? end - KH_LZ4_TAIL : data;
    const uint8_t *literals = data, *at = data + 1;
    uint8_t *o = out, *token;
    uint32_t misses = KH_LZ4_PATIENCE;
    size_t run, usual = 0;

    memset(seen, 0, sizeof(seen)); /* nothing was seen but the first byte, which nobody looks for */
    while (at < last) {
        uint64_t word = kh_load64(at);
        uint16_t *slot = &seen[kh_lz4_slot(word)];
        const uint8_t *match = data + *slot;
        uint64_t differ = word ^ kh_load64(match);
        *slot = (uint16_t) (at - data);
        if ((uint32_t) differ) {
            at += misses++ / KH_LZ4_PATIENCE;
            continue;
        }
        size_t length;
        if (differ) {
            length = (size_t) (__builtin_ctzll(differ) >> 3);
        } else {
            length = 8 + kh_lz4_same(at + 8, match + 8, end - KH_LZ4_LITERALS);
        }
        const uint8_t *next;
        size_t hoped = usual;
        __asm__("" : "+r"(hoped)); /* for the compiler, too, another number than `length` */
        if (length == usual) {
            next = at + hoped;
            __asm__ volatile("" : "+r"(next)); /* a branch, which is foretold, and no choice */
        } else {
            next = at + length;
            usual = length;
        }
        token = o++;
        uint8_t halves = 0;
        if (at != literals) {
            run = (size_t) (at - literals);
            if (match >= data + 8) { /* it may have begun earlier */
                differ = kh_load64(at - 8) ^ kh_load64(match - 8);
                size_t back = differ ? (size_t) (__builtin_clzll(differ) >> 3) : 8;
                if (back > run) back = run;
                at -= back;
                match -= back;
                length += back;
                run -= back;
            }
            if (run >= 15) {
                halves = 0xF0;
                o = kh_lz4_rest(o, run - 15);
            } else {
                halves = (uint8_t) (run << 4);
            }
            for (size_t done = 0; done < run; done += 16) memcpy(o + done, literals + done, 16);
            o += run;
        }
        *o++ = (uint8_t) (at - match);
        *o++ = (uint8_t) ((at - match) >> 8);
        length -= KH_LZ4_LEAST;
        if (length >= 15) {
            halves |= 15;
            o = kh_lz4_rest(o, length - 15);
        } else {
            halves |= (uint8_t) length;
        }
        *token = halves;
        /* What begins a little later may come again without what stood before it. */
        seen[kh_lz4_slot(kh_load64(at + 1))] = (uint16_t) (at + 1 - data);
        seen[kh_lz4_slot(kh_load64(at + 2))] = (uint16_t) (at + 2 - data);
        at = literals = next;
        misses = KH_LZ4_PATIENCE;
    }
    run = (size_t) (end - literals);
    token = o++;
    if (run >= 15) {
        *token = 0xF0;
        o = kh_lz4_rest(o, run - 15);
    } else {
        *token = (uint8_t) (run << 4);
    }
    memcpy(o, literals, run);
    return (size_t) (o + run - out);
}

static inline uint8_t *kh_lz4_size(uint8_t *out, uint32_t size) {
    for (int i = 0; i < 4; i++) out[i] = (uint8_t) (size >> 8 * i);
    return out + 4;
}

/* The blocks of a frame, each with its size, and the mark of their end; how many bytes. */
static size_t kh_lz4_blocks(const uint8_t *data, size_t size, uint8_t *out) {
    uint8_t *o = out;
    while (size) {
        size_t part = size < KH_LZ4_BLOCK ? size : KH_LZ4_BLOCK;
        size_t packed = kh_lz4_block(data, part, o + 4);
        if (packed < part) {
            kh_lz4_size(o, (uint32_t) packed);
        } else {
            packed = part;
            kh_lz4_size(o, (uint32_t) packed | 0x80000000u);
            memcpy(o + 4, data, part);
        }
        o += 4 + packed;
        data += part;
        size -= part;
    }
    o = kh_lz4_size(o, 0);
    return (size_t) (o - out);
}

#endif
