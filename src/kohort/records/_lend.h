/* The C data interface of Apache Arrow: how arrays are handed from one library to another of the
 * same process. The layout is fixed by its specification. */
#ifndef KOHORT_LEND_H
#define KOHORT_LEND_H

#include <stdint.h>

typedef struct kh_arrow_array kh_arrow_array;

struct kh_arrow_array {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    kh_arrow_array **children;
    kh_arrow_array *dictionary;
    void (*release)(kh_arrow_array *array); /* NULL once it has been called, or the array moved */
    void *private_data;
};

#endif
