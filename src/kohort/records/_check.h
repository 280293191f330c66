/* What a broker looks at in the records of a produced batch: all of it, and nothing is copied. */
#ifndef KOHORT_CHECK_H
#define KOHORT_CHECK_H

#include "_record.h"

typedef struct {
    int64_t earliest; /* timestamp of those records that have one, -1: none has */
    int64_t latest;
    int32_t keyless;
} kh_checked;

/* Walks exactly `count` records, whose offset deltas are 0, 1, 2 and so on; an index of
 * layout.RECORD_FAULTS. */
static int kh_check_records(const uint8_t *p, const uint8_t *end, int32_t count,
                            int64_t base_timestamp, kh_checked *out) {
    kh_cursor c = {.p = p, .end = end, .left = count, .last_seen = -1, .last_delta = 0,
                   .base_timestamp = base_timestamp};
    kh_checked seen = {INT64_MAX, -1, 0};
    kh_item item;
    while (c.left > 0) {
        int fault = kh_next_item(&c, &item);
        if (fault != KH_FINE)
            return fault;
        c.last_delta++;
        if (item.timestamp > seen.latest)
            seen.latest = item.timestamp;
        if (item.timestamp >= 0 && item.timestamp < seen.earliest)
            seen.earliest = item.timestamp;
        seen.keyless += item.key_size < 0;
    }
    if (seen.earliest == INT64_MAX && seen.latest != INT64_MAX)
        seen.earliest = -1;
    *out = seen;
    return c.p == end ? KH_FINE : KH_BAD_END;
}

#endif
