/* Growing buffers and columns of byte strings in Arrow's layout, filled row by row. */
#ifndef KOHORT_COLUMNS_H
#define KOHORT_COLUMNS_H

#include <stdlib.h>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "_record.h"

typedef struct {
    uint8_t *data;
    size_t size;
    size_t room;
} kh_vec;

typedef struct {
    kh_vec offsets;  /* int32 */
    kh_vec data;
    kh_vec bits;  /* all set at first; a null clears its own */
    ptrdiff_t nulls;
} kh_strings;

static __attribute__((noinline)) int kh_grow(kh_vec *vec, size_t room) {
    size_t wanted = vec->room * 2 > room ? vec->room * 2 : room;
    uint8_t *moved = (uint8_t *)realloc(vec->data, wanted);
    if (moved == NULL)
        return -1;
    vec->data = moved;
    vec->room = wanted;
    return 0;
}

/* Has the system provide the pages of memory that is about to be written, all at once, which takes
 * two thirds of what as many page faults do. Where it cannot (before Linux 5.14), they come one by
 * one. */
static void kh_populate(kh_vec *vec) {
#if defined(__linux__)
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t start = ((uintptr_t)vec->data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)vec->data + vec->room) / page * page;
    if (start < end)
        (void)madvise((void *)start, end - start, 23 /* MADV_POPULATE_WRITE */);
#else
    (void)vec;
#endif
}

/* Makes room for `room` bytes in all; -1 when there is no memory. */
KH_INLINE int kh_reserve(kh_vec *vec, size_t room) {
    return KH_LIKELY(room <= vec->room) ? 0 : kh_grow(vec, room);
}

/* Row `row`, the next one, which has room in offsets and bits; -1 when there is no memory for it.
 * `readable` bytes may be read behind `from`, though only `size` of them belong to the row: short
 * rows are copied sixteen bytes at once where both sides have them. */
KH_INLINE int kh_put_row(kh_strings *column, ptrdiff_t row, const uint8_t *from, int32_t size,
                         ptrdiff_t readable) {
    size_t before = column->data.size;
    if (KH_LIKELY(size > 0)) {
        size_t room = column->data.room - before;
        if (size <= 16 && room >= 16 && readable >= 16) {
            memcpy(column->data.data + before, from, 16);
        } else {
            if (room < (size_t)size) {
                if (before + (size_t)size > INT32_MAX
                    || kh_grow(&column->data, before + (size_t)size))
                    return -1;
            }
            memcpy(column->data.data + before, from, (size_t)size);
        }
        before += (size_t)size;
        column->data.size = before;
    } else if (size < 0) {
        column->bits.data[row >> 3] &= (uint8_t)~(1u << (row & 7));
        column->nulls++;
    }
    ((int32_t *)column->offsets.data)[row + 1] = (int32_t)before;
    return 0;
}

#endif
