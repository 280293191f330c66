/* Which code ran: a map of edges that instrumented modules fill and tools/fuzz.py reads.

   gcc's -fsanitize-coverage=trace-pc calls the function below in every basic block. */
#include <stdint.h>
#include <string.h>

#define SIZE 65536

static uint8_t map[SIZE];
static __thread uintptr_t last;

void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    uintptr_t at = (here ^ (last << 1)) * 0x9E3779B97F4A7C15ull >> 48;
    map[at & (SIZE - 1)] = 1;
    last = here;
}

uint8_t *coverage_map(void) { return map; }
int coverage_size(void) { return SIZE; }
void coverage_clear(void) { memset(map, 0, SIZE); last = 0; }
