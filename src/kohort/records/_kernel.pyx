# cython: language_level=3
"""The compiled kernel: CRC-32C, decoding to records and columns, encoding batches.

Rules:
- `pure.py` is its specification: the same names, the same results, the same errors, byte for byte.
- No length is believed before it is compared with what is left; nothing is allocated on the word of
  a count that the bytes at hand could not hold.
- Records, pages and buffers own their memory by reference; none is recycled while referenced (C13).
  None of them can be in a reference cycle, so they are kept from the garbage collector's lists.
- The interpreter's lock is let go only for work longer than taking it back may cost.

`_decode.pxi` holds the way in, `_encode.pxi` and `_from_columns.pxi` the way out, `_lend.pxi` that
to Arrow.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBUF_WRITE, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize, PyBytes_Size
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from kohort.errors import ConcurrentUseError, CorruptRecordError, RecordTooLargeError, UsageError
from kohort.records.columns import (
    DEFAULT_COLUMNS, DEFAULT_MAX_ROWS, DEFAULT_PIECE_BYTES, MOST_PIECE_BYTES,
    BinaryColumn, Columns, HeaderColumn,
    sound_keys,
)
from kohort.records.compression import (
    DEFAULT_MAX_DECOMPRESSED_BYTES, check_level, compress_bound, compress_into, decompress,
    Compression,
)
from kohort.records.layout import (
    MAX_OFFSET, RECORD_FAULTS, RecordCheck, TimestampType, corrupt, too_many_records,
)

cdef extern from "_crc32c.h":
    const char *kh_crc_init()
    uint32_t kh_crc32c(uint32_t crc, const uint8_t *data, size_t size) nogil
    uint32_t kh_crc_on(uint32_t raw, const uint8_t *data, size_t size) nogil
    uint32_t kh_crc_moved(uint32_t raw, size_t size) nogil
    uint32_t kh_crc32c_portable(uint32_t crc, const uint8_t *data, size_t size) nogil

cdef extern from "_record.h":
    ctypedef struct Cursor "kh_cursor":
        const uint8_t *p
        const uint8_t *end
        int32_t left
        int32_t last_seen
        int32_t last_delta
        int32_t append_time
        int64_t base_offset
        int64_t base_timestamp
        int64_t max_timestamp
        int64_t position
        int64_t end_offset

    ctypedef struct Item "kh_item":
        int64_t offset
        int64_t timestamp
        const uint8_t *key
        const uint8_t *value
        const uint8_t *headers
        int32_t key_size
        int32_t value_size
        int32_t header_count

    enum:
        FINE "KH_FINE"
        BAD_ORDER "KH_BAD_ORDER"
        BAD_END "KH_BAD_END"

    int next_item "kh_next_item" (Cursor *cursor, Item *item) nogil
    const uint8_t *get_varint "kh_get_int" (
        const uint8_t *p, const uint8_t *end, int32_t *out) nogil
    int kh_width(uint64_t value) nogil

cdef extern from "_check.h":
    ctypedef struct Checked "kh_checked":
        int64_t earliest
        int64_t latest
        int32_t keyless

    int walk_records "kh_check_records" (
        const uint8_t *p, const uint8_t *end, int32_t count, int64_t base_timestamp, Checked *out
    ) nogil

cdef enum:
    HEADER = 61
    PREFIX = 12
    CRC_FROM = 21
    MIN_RECORD = 7
    # Below this many bytes the work is shorter than a hand-over of the interpreter's lock.
    UNLOCK_BYTES = 65536

cdef int64_t LAST_OFFSET = 0x7FFFFFFFFFFFFFFF
cdef int64_t MOST_OFFSET = 0x7FFFFFFFFFFFFFFE

CRC_PATH = (<bytes> kh_crc_init()).decode()
cdef object CREATE_TIME = TimestampType.CREATE_TIME
cdef object LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME


# Memory ------------------------------------------------------------------------------------------

cdef extern from "_columns.h":
    ctypedef struct Vec "kh_vec":
        uint8_t *data
        size_t size
        size_t room

    ctypedef struct Binary "kh_strings":
        Vec offsets
        Vec data
        Vec bits
        Py_ssize_t nulls

    int reserve "kh_reserve" (Vec *vec, size_t room) nogil
    void populate "kh_populate" (Vec *vec) nogil
    int put_row "kh_put_row" (
        Binary *column, Py_ssize_t row, const uint8_t *start, int32_t size, Py_ssize_t readable
    ) nogil


cdef extern from "_usual.h":
    ctypedef struct Table "kh_table":
        Binary *keys
        Binary *values
        int64_t *offsets
        int64_t *times
        uint8_t *types
        int32_t *lists
        int32_t header_rows
        Py_ssize_t rows
        Py_ssize_t max_rows
        Py_ssize_t raw
        Py_ssize_t max_raw
        const uint8_t *ahead_end

    void kh_take_usual(Cursor *cursor, Table *table) nogil


# Fresh memory costs more than the decoding that fills it (a page fault is about a microsecond), so
# large buffers come back here when their last reference is gone. The lock guards this pool.
cdef enum:
    POOL_SLOTS = 160
    POOL_BYTES = 48 * 1024 * 1024
    POOL_LEAST = 32 * 1024

cdef Vec pool[POOL_SLOTS]
cdef int pooled = 0
cdef int drop_next = 0
cdef size_t pooled_bytes = 0


cdef size_t size_class(size_t room) noexcept nogil:
    """The next of four steps to each power of two, so that frames of about a size share buffers."""
    cdef size_t step = 1
    while step * 8 <= room:
        step *= 2
    return (room + step - 1) // step * step


cdef bint draw(Vec *vec, size_t room) except -1:
    """Gives the empty `vec` room, from the pool when something there fits well. True: it is new."""
    global pooled, pooled_bytes
    cdef int i, best = -1
    if room >= POOL_LEAST:
        room = size_class(room)
        for i in range(pooled):
            if pool[i].room >= room and (best < 0 or pool[i].room < pool[best].room):
                best = i
    if best >= 0 and pool[best].room <= room + room // 4 + POOL_LEAST:
        vec[0] = pool[best]
        pooled -= 1
        pooled_bytes -= vec.room
        pool[best] = pool[pooled]
        return False
    if reserve(vec, room):
        raise MemoryError
    return True


cdef void release(Vec *vec) noexcept:
    """Gives the memory of `vec` to the pool, or back to the system."""
    global pooled, pooled_bytes
    if POOL_LEAST <= vec.room <= POOL_BYTES // 2:
        while pooled == POOL_SLOTS or pooled_bytes + vec.room > POOL_BYTES:
            drop_one()
        pool[pooled] = vec[0]
        pool[pooled].size = 0
        pooled += 1
        pooled_bytes += vec.room
    else:
        free(vec.data)
    vec.data = NULL
    vec.size = vec.room = 0


cdef void drop_one() noexcept:
    """Frees one buffer of the pool, each in turn, so that sizes no longer asked for go."""
    global pooled, pooled_bytes, drop_next
    drop_next = (drop_next + 1) % pooled
    pooled -= 1
    pooled_bytes -= pool[drop_next].room
    free(pool[drop_next].data)
    pool[drop_next] = pool[pooled]


@cython.final
@cython.no_gc
cdef class Memory:
    """A buffer that owns its bytes and gives them to the pool when it goes."""

    cdef Vec vec

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.vec.data, <Py_ssize_t> self.vec.size, 0, flags)

    def __dealloc__(self):
        release(&self.vec)


cdef object take(Vec *vec, size_t spare=0):
    """The bytes of `vec` as a memoryview that owns them, in memory of about their size."""
    cdef Memory memory = Memory.__new__(Memory)
    if not spare:
        spare = vec.size // 2 + 64
    if vec.data != NULL and vec.room <= vec.size + spare:
        memory.vec = vec[0]
        vec.data = NULL
        vec.size = vec.room = 0
    else:
        draw(&memory.vec, vec.size if vec.size else 8)
        if vec.size:  # copying nothing from NULL is not defined
            memcpy(memory.vec.data, vec.data, vec.size)
        memory.vec.size = vec.size
    return memoryview(memory).toreadonly()


def allocate(size_t size, bint filled_soon=False):
    """A writable buffer of `size` bytes from the pool; its contents are undefined.

    `filled_soon`: all of it is about to be written; for nothing that others could ask for in vain.
    """
    cdef Memory memory = Memory.__new__(Memory)
    if draw(&memory.vec, size if size else 1) and filled_soon and size >= POOL_LEAST:
        with nogil:
            populate(&memory.vec)
    memory.vec.size = size
    return memoryview(memory)


@cython.final
@cython.no_gc
cdef class Source:
    """A caller's buffer, held while anything points into it."""

    cdef Py_buffer view
    cdef bint held

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


# Numbers -----------------------------------------------------------------------------------------

include "_numbers.pxi"


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)


cdef inline uint8_t *put_varint(uint8_t *p, uint64_t raw) noexcept nogil:
    while raw > 0x7F:
        p[0] = <uint8_t> (raw | 0x80)
        p += 1
        raw >>= 7
    p[0] = <uint8_t> raw
    return p + 1


# CRC ---------------------------------------------------------------------------------------------

def crc32c(data, uint32_t crc=0):
    """CRC-32C of `data`, continued from `crc`."""
    return crc_of(data, crc, False)


def crc32c_portable(data, uint32_t crc=0):
    """The same by tables, as on processors without the instruction."""
    return crc_of(data, crc, True)


cdef object crc_of(object data, uint32_t crc, bint portable):
    cdef Py_buffer view
    cdef const uint8_t *start
    cdef size_t size
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    start = <const uint8_t *> view.buf
    size = <size_t> view.len
    try:
        if portable:
            crc = kh_crc32c_portable(crc, start, size)
        elif size >= UNLOCK_BYTES:
            with nogil:
                crc = kh_crc32c(crc, start, size)
        else:
            crc = kh_crc32c(crc, start, size)
    finally:
        PyBuffer_Release(&view)
    return crc


include "_decode.pxi"
include "_encode.pxi"
include "_from_columns.pxi"
include "_lend.pxi"
