/* Reading one record of a batch: the innermost loop of every decode, forced inline so that the
 * cursor stays in registers. Nothing is read before it is known to lie within the batch. */
#ifndef KOHORT_RECORD_H
#define KOHORT_RECORD_H

#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define KH_INLINE static inline __attribute__((always_inline))
#define KH_LIKELY(x) __builtin_expect(!!(x), 1)
#define kh_width(x) ((63 - __builtin_clzll((unsigned long long)(x) | 1)) / 7 + 1)
#else
#error "the kernel needs GCC or Clang"
#endif

/* Indexes of layout.RECORD_FAULTS. */
enum {
    KH_FINE, KH_BAD_LENGTH, KH_BAD_DELTA, KH_BAD_KEY, KH_BAD_VALUE, KH_BAD_HEADERS, KH_BAD_SIZE,
    KH_BAD_ORDER, KH_BAD_END
};

typedef struct {
    /* One open batch: what is left of its records, and what its header says of them. */
    const uint8_t *p;
    const uint8_t *end;
    int32_t left;
    int32_t last_seen;  /* offset delta of the record before, -1 at first */
    int32_t last_delta;
    int32_t append_time;
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t position;    /* first offset that the caller still wants */
    int64_t end_offset;  /* first offset that it does not want */
} kh_cursor;

typedef struct {
    /* One record, where it stands. */
    int64_t offset;
    int64_t timestamp;
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers;
    int32_t key_size;  /* -1: null */
    int32_t value_size;
    int32_t header_count;
} kh_item;

/* A zigzag varint of at most `longest` bytes; NULL when it is cut off or too long. */
static __attribute__((noinline)) const uint8_t *kh_get_long(
    const uint8_t *p, const uint8_t *end, int longest, int64_t *out) {
    uint64_t raw = 0;
    for (int shift = 0; longest > 0 && p < end; shift += 7, longest--) {
        raw |= (uint64_t)(*p & 0x7f) << shift;
        if (*p++ < 0x80) {
            *out = (int64_t)((raw >> 1) ^ (0 - (raw & 1)));
            return p;
        }
    }
    return NULL;
}

KH_INLINE const uint8_t *kh_get_int(const uint8_t *p, const uint8_t *end, int32_t *out) {
    int64_t wide = 0;
    if (KH_LIKELY(end - p >= 2)) {
        uint32_t raw = p[0];
        if (raw < 0x80) {
            *out = (int32_t)((raw >> 1) ^ (0 - (raw & 1)));
            return p + 1;
        }
        if (p[1] < 0x80) {
            raw = (raw & 0x7f) | (uint32_t)p[1] << 7;
            *out = (int32_t)((raw >> 1) ^ (0 - (raw & 1)));
            return p + 2;
        }
    }
    p = kh_get_long(p, end, 5, &wide);
    if (wide > INT32_MAX || wide < INT32_MIN)
        return NULL;
    *out = (int32_t)wide;
    return p;
}

/* Behind `count` headers; NULL when one of them does not fit. */
static const uint8_t *kh_skip_headers(const uint8_t *p, const uint8_t *stop, int32_t count) {
    int32_t size = 0;
    while (count-- > 0) {
        p = kh_get_int(p, stop, &size);
        if (p == NULL || size < 0 || size > stop - p)
            return NULL;
        p += size;
        p = kh_get_int(p, stop, &size);
        if (p == NULL || size < -1 || size > stop - p)
            return NULL;
        if (size > 0)
            p += size;
    }
    return p;
}

/* Reads the next record and moves behind it; on a fault the cursor stays. */
KH_INLINE int kh_next_item(kh_cursor *c, kh_item *item) {
    int32_t size = 0, delta = 0, count = 0;
    int64_t time = 0;
    const uint8_t *p = kh_get_int(c->p, c->end, &size);
    if (p == NULL || size < 6 || size > c->end - p)
        return KH_BAD_LENGTH;
    const uint8_t *stop = p + size;
    p++; /* attributes, which have no meaning yet */
    if (*p < 0x80) {
        time = (int64_t)(*p >> 1) ^ -(int64_t)(*p & 1);
        p++;
    } else if (p[1] < 0x80) {
        uint32_t raw = (p[0] & 0x7fu) | (uint32_t)p[1] << 7;
        time = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
        p += 2;
    } else {
        p = kh_get_long(p, stop, 10, &time);
        if (p == NULL)
            return KH_BAD_DELTA;
    }
    p = kh_get_int(p, stop, &delta);
    if (p == NULL)
        return KH_BAD_DELTA;
    if (delta <= c->last_seen || delta > c->last_delta)
        return KH_BAD_ORDER;
    p = kh_get_int(p, stop, &item->key_size);
    if (p == NULL || item->key_size < -1 || item->key_size > stop - p)
        return KH_BAD_KEY;
    item->key = p;
    p += item->key_size > 0 ? item->key_size : 0;
    p = kh_get_int(p, stop, &item->value_size);
    if (p == NULL || item->value_size < -1 || item->value_size > stop - p)
        return KH_BAD_VALUE;
    item->value = p;
    p += item->value_size > 0 ? item->value_size : 0;
    if (KH_LIKELY(stop - p == 1 && *p == 0)) {
        p++;
    } else {
        p = kh_get_int(p, stop, &count);
        if (p == NULL || count < 0 || count > stop - p)
            return KH_BAD_HEADERS;
    }
    item->headers = p;
    item->header_count = count;
    if (count) {
        p = kh_skip_headers(p, stop, count);
        if (p == NULL)
            return KH_BAD_HEADERS;
    }
    if (p != stop)
        return KH_BAD_SIZE;
    item->offset = c->base_offset + delta;
    item->timestamp = c->append_time
        ? c->max_timestamp : (int64_t)((uint64_t)c->base_timestamp + (uint64_t)time);
    c->last_seen = delta;
    c->left--;
    c->p = stop;
    return KH_FINE;
}

#endif
