/* Records of the usual shape, many at once: the loop that a bulk read spends its time in.
 *
 * Usual is: sizes and deltas of at most three bytes, a value, no headers, and room in the columns
 * for whole blocks. A run ends before the first record that is anything else; the careful loop
 * (`kh_next_item`) then reads that one or says what is wrong with it, so nothing here reports. */
#ifndef KOHORT_USUAL_H
#define KOHORT_USUAL_H

#include "_columns.h"

enum {
    KH_BLOCK = 16,
    KH_HEAD = 16,        /* more than stands before a key: 3 + 1 + 3 + 3 + 3 bytes */
    KH_AHEAD = 128 << 10 /* drawn into the cache: about the next batch, whose CRC comes first */
};

typedef struct {
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *stop;
    uint32_t key_size;
    uint32_t value_size;
    uint32_t delta;
    uint32_t time; /* raw */
    int null_key;
} kh_usual;

/* A raw varint of up to three bytes; NULL when it is longer. */
KH_INLINE const uint8_t *kh_get_short(const uint8_t *p, uint32_t *raw) {
    uint32_t first = p[0];
    if (first < 0x80) {
        *raw = first;
        return p + 1;
    }
    if (KH_LIKELY(p[1] < 0x80)) {
        *raw = (first & 0x7f) | (uint32_t)p[1] << 7;
        return p + 2;
    }
    *raw = (first & 0x7f) | (p[1] & 0x7fu) << 7 | (uint32_t)p[2] << 14;
    return KH_LIKELY(p[2] < 0x80) ? p + 3 : NULL;
}

/* Whether the record at `p` is usual, and where its parts are. Odd raw numbers are negative. */
KH_INLINE int kh_usual_record(const uint8_t *p, const uint8_t *end, kh_usual *out) {
    uint32_t size;
    if (end - p < 2 * KH_HEAD || (p = kh_get_short(p, &size)) == NULL || size & 1)
        return 0;
    size >>= 1;
    if (size < KH_HEAD || size > (size_t)(end - p))
        return 0;
    out->stop = p + size;
    p++; /* attributes, which have no meaning yet */
    if ((p = kh_get_short(p, &out->time)) == NULL || (p = kh_get_short(p, &out->delta)) == NULL
        || (p = kh_get_short(p, &size)) == NULL || out->delta & 1)
        return 0;
    out->delta >>= 1;
    out->key = p;
    out->null_key = size == 1;
    if (size & 1 && size != 1)
        return 0;
    out->key_size = size >> 1;
    if (out->stop - p < 4 || out->key_size > (size_t)(out->stop - p - 4))
        return 0;
    p = kh_get_short(p + out->key_size, &size);
    if (p == NULL || size & 1)
        return 0;
    out->value = p;
    out->value_size = size >> 1;
    return out->value_size + 1 == (size_t)(out->stop - p) && out->stop[-1] == 0;
}

/* Copies whole blocks: up to KH_BLOCK - 1 bytes more than `size` are read and written. */
KH_INLINE void kh_copy_blocks(uint8_t *to, const uint8_t *from, size_t size) {
    for (size_t i = 0; i < size; i += KH_BLOCK)
        memcpy(to + i, from + i, KH_BLOCK);
}

/* Whether whole blocks can be copied behind what `vec` has. */
KH_INLINE int kh_block_room(const kh_vec *vec, size_t size) {
    return vec->room - vec->size >= size + KH_BLOCK;
}

typedef struct {
    /* Where rows go; a column that is not wanted is NULL, the others have room for the batch. */
    kh_strings *keys;
    kh_strings *values;
    int64_t *offsets;
    int64_t *times;
    uint8_t *types;
    int32_t *lists;
    int32_t header_rows;
    ptrdiff_t rows;
    ptrdiff_t max_rows;
    ptrdiff_t raw; /* record bytes read so far */
    ptrdiff_t max_raw;
    const uint8_t *ahead_end; /* what is to be read next ends here */
} kh_table;

/* One string behind the others; there is room for it. */
KH_INLINE void kh_put_usual(kh_vec *data, int32_t *ends, ptrdiff_t row, const uint8_t *from,
                            uint32_t size) {
    kh_copy_blocks(data->data + data->size, from, size);
    data->size += size;
    ends[row + 1] = (int32_t)data->size;
}

KH_INLINE void kh_put_numbers(const kh_table *t, const kh_cursor *c, ptrdiff_t row,
                              const kh_usual *r) {
    int64_t time = (int64_t)(r->time >> 1) ^ -(int64_t)(r->time & 1);
    if (t->offsets != NULL)
        t->offsets[row] = c->base_offset + r->delta;
    if (t->times != NULL)
        t->times[row] = c->append_time
            ? c->max_timestamp : (int64_t)((uint64_t)c->base_timestamp + (uint64_t)time);
    if (t->types != NULL)
        t->types[row] = (uint8_t)c->append_time;
    if (t->lists != NULL)
        t->lists[row + 1] = t->header_rows;
}

/* Reads on as long as records are usual and wanted. */
static void kh_take_usual(kh_cursor *cursor, kh_table *table) {
    kh_cursor c = *cursor;
    kh_table t = *table;
    kh_usual r;
    kh_vec none = {0, 0, 0};
    kh_vec key = t.keys != NULL ? t.keys->data : none;
    kh_vec value = t.values != NULL ? t.values->data : none;
    int32_t *key_ends = t.keys != NULL ? (int32_t *)t.keys->offsets.data : NULL;
    int32_t *value_ends = t.values != NULL ? (int32_t *)t.values->offsets.data : NULL;
    const uint8_t *start = c.p;
    const uint8_t *full = t.max_raw - t.raw < c.end - c.p ? c.p + (t.max_raw - t.raw) : c.end;
    const int64_t low = c.position - c.base_offset, high = c.end_offset - c.base_offset;
    ptrdiff_t row = t.rows;
    while (c.left > 0 && row < t.max_rows && c.p < full && kh_usual_record(c.p, c.end, &r)) {
        int32_t delta = (int32_t)r.delta;
        if (t.ahead_end - c.p > KH_AHEAD) {
            __builtin_prefetch(c.p + KH_AHEAD, 0, 2);
            __builtin_prefetch(c.p + KH_AHEAD + 64, 0, 2);
        }
        if (delta <= c.last_seen || delta > c.last_delta || delta < low || delta >= high)
            break;
        if ((key_ends != NULL && !kh_block_room(&key, r.key_size))
            || (value_ends != NULL && !kh_block_room(&value, r.value_size))
            || c.end - r.stop < KH_BLOCK)
            break;
        if (key_ends != NULL) {
            if (r.null_key) {
                t.keys->bits.data[row >> 3] &= (uint8_t)~(1u << (row & 7));
                t.keys->nulls++;
            }
            kh_put_usual(&key, key_ends, row, r.key, r.key_size);
        }
        if (value_ends != NULL)
            kh_put_usual(&value, value_ends, row, r.value, r.value_size);
        kh_put_numbers(&t, &c, row, &r);
        row++;
        c.last_seen = delta;
        c.left--;
        c.p = r.stop;
    }
    if (c.p == start)
        return;
    c.position = c.base_offset + c.last_seen + 1;
    *cursor = c;
    table->rows = row;
    table->raw += c.p - start;
    if (t.keys != NULL)
        t.keys->data.size = key.size;
    if (t.values != NULL)
        t.values->data.size = value.size;
}

#endif
