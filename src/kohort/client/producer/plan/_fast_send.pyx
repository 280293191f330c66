# cython: embedsignature=False
"""The producer's hot path, compiled. It follows `fast_send.py` line by line."""

cimport cython
from cpython.dict cimport PyDict_GetItemWithError
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

import threading
from array import array

from kohort.client.producer.plan.delivery import await_delivery, error_of, metadata_of, timed_out
from kohort.errors import UsageError
from kohort.records._kernel import APPEND_PLAIN, BatchBuilder

# Not Cython's `posix.time`: it names <sys/time.h>, which has these only by way of Python's headers
# (not those of the stable ABI from 3.13 on).
cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec

    int CLOCK_REALTIME
    int clock_gettime(int clock, timespec *now)

# `BatchBuilder.append` without a call through Python. -1: it has something to say, so ask it.
ctypedef int64_t (*Append)(
    PyObject *builder, int64_t timestamp, PyObject *key, PyObject *value
) noexcept

cdef Append append_plain = <Append> PyCapsule_GetPointer(
    APPEND_PLAIN, "kohort.records.append_plain"
)
cdef object builder_type = BatchBuilder
cdef tuple no_headers = ()


cdef uint32_t hash_key(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t m = <uint32_t> 0x5BD1E995u
    cdef uint32_t h = <uint32_t> 0x9747B28Cu ^ <uint32_t> size
    cdef uint32_t k
    cdef Py_ssize_t at = 0
    while size - at >= 4:
        k = (
            <uint32_t> data[at] | <uint32_t> data[at + 1] << 8
            | <uint32_t> data[at + 2] << 16 | <uint32_t> data[at + 3] << 24
        ) * m
        h = (h * m) ^ ((k ^ (k >> 24)) * m)
        at += 4
    if at < size:
        k = data[at]
        if size - at > 1:
            k |= <uint32_t> data[at + 1] << 8
        if size - at > 2:
            k |= <uint32_t> data[at + 2] << 16
        h = (h ^ k) * m
    h = (h ^ (h >> 13)) * m
    return h ^ (h >> 15)


cdef uint32_t hash_of(key) except? 0:
    cdef const uint8_t[::1] view
    if type(key) is bytes:
        return hash_key(<const uint8_t *> <char *> (<bytes> key), len(<bytes> key))
    view = key
    return hash_key(&view[0] if view.shape[0] else NULL, view.shape[0])


def murmur2(data):
    return hash_of(data)


def for_key(key, Py_ssize_t partitions):
    return (hash_of(key) & 0x7FFFFFFF) % <uint32_t> partitions


def rows_by_key(column, Py_ssize_t rows, Py_ssize_t partitions):
    cdef const int32_t[::1] offsets = memoryview(column.offsets).cast("B").cast("i")
    cdef const uint8_t[::1] data = memoryview(column.data).cast("B")
    cdef const uint8_t[::1] bits = None
    cdef const uint8_t *content = &data[0] if data.shape[0] else NULL
    cdef Py_ssize_t row, first = column.first
    cdef int32_t number, start, end
    if column.validity is not None:
        bits = memoryview(column.validity).cast("B")
    if rows and (offsets.shape[0] <= first + rows or (
        bits is not None and bits.shape[0] * 8 < first + rows
    )):
        raise UsageError(f"a column of keys is too short for {rows} rows")
    cdef object numbers = array("i", bytes(4 * rows))
    cdef object order = array("i", bytes(4 * rows))
    cdef object bounds = array("i", bytes(4 * (partitions + 2)))
    if not rows:
        return [memoryview(order)] * (partitions + 1)
    cdef int32_t[::1] chosen = numbers
    cdef int32_t[::1] ordered = order
    cdef int32_t[::1] at = bounds  # where the next row of each partition goes
    for row in range(rows):
        number = <int32_t> partitions
        if bits is None or bits[(first + row) >> 3] >> ((first + row) & 7) & 1:
            start, end = offsets[first + row], offsets[first + row + 1]
            if start < 0 or end < start or end > data.shape[0]:
                raise UsageError(f"row {row} of a column has offsets outside the column's data")
            number = (hash_key(content + start, end - start) & 0x7FFFFFFF) % <int32_t> partitions
        chosen[row] = number
        at[number + 1] += 1
    for row in range(1, partitions + 2):
        at[row] += at[row - 1]
    for row in range(rows):
        ordered[at[chosen[row]]] = <int32_t> row
        at[chosen[row]] += 1
    whole = memoryview(order)
    return [
        whole[(bounds[number - 1] if number else 0):bounds[number]]
        for number in range(partitions + 1)
    ]


cdef inline int64_t now_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t> now.tv_sec * 1000 + now.tv_nsec // 1_000_000


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class RecordFuture:
    cdef object delivery
    cdef int64_t index
    cdef int64_t timestamp_ms

    def __init__(self, delivery, int64_t index, int64_t timestamp_ms):
        self.delivery = delivery
        self.index = index
        self.timestamp_ms = timestamp_ms

    @property
    def done(self):
        return self.delivery.done

    def result(self, timeout_s=None):
        if not self.delivery.wait(timeout_s):
            raise timed_out(self.delivery, timeout_s)
        return metadata_of(self.delivery, self.index, self.timestamp_ms)

    def error(self, timeout_s=None):
        if not self.delivery.wait(timeout_s):
            raise timed_out(self.delivery, timeout_s)
        return error_of(self.delivery, self.index)

    def add_done_callback(self, fn):
        self.delivery.add_callback(lambda: fn(self))

    def __await__(self):
        return await_delivery(self.delivery, self.index, self.timestamp_ms)


@cython.final
cdef class Guard:
    cdef object lock
    cdef bint held

    def __init__(self):
        self.lock = threading.Lock()
        self.held = False

    def reset(self):
        self.lock = threading.Lock()
        self.held = False

    def __enter__(self):
        self.lock.acquire()
        self.held = True

    def __exit__(self, kind, error, trace):
        self.held = False
        self.lock.release()


cdef class Slot:
    cdef public object builder
    cdef public object delivery


cdef class TopicSlots:
    cdef public list slots
    cdef public Py_ssize_t sticky


cdef class Front:
    cdef Guard guard
    cdef dict routes
    cdef bint chooses
    cdef object add_slowly

    def __init__(self, Guard guard, dict routes, bint chooses, add_slowly):
        self.guard = guard
        self.routes = routes
        self.chooses = chooses
        self.add_slowly = add_slowly

    def send(self, topic, value=None, key=None, partition=None, timestamp_ms=None, headers=()):
        """Add a record to its batch; the future tells where it was stored, or why not.

        `timestamp_ms` is now by default. Waits at most `max_block_ms` for memory or for the topic's
        metadata, then raises KafkaTimeoutError, or BrokerError when the topic does not exist.
        Raises RecordTooLargeError, UsageError (no such partition), ClosedError. When it raises,
        nothing has been sent.
        """
        cdef PyObject *route = PyDict_GetItemWithError(self.routes, topic)
        cdef TopicSlots slots
        cdef Slot slot
        cdef Py_ssize_t number
        cdef int64_t when_ms
        cdef int64_t index
        cdef RecordFuture future
        # Nothing below can let another thread in: with the interpreter's lock, plain bytes and no
        # headers, not even the builder runs Python code. So the guard need not be taken, only be
        # free.
        if (
            route == NULL or self.guard.held or (headers is not no_headers and headers)
            or (type(value) is not bytes and value is not None)
            or (type(key) is not bytes and key is not None)
            or (type(partition) is not int and partition is not None)
            or (type(timestamp_ms) is not int and timestamp_ms is not None)
        ):
            return self.add_slowly(topic, value, key, partition, timestamp_ms, headers)
        slots = <TopicSlots> <object> route
        if partition is not None:
            try:
                number = partition
            except OverflowError:
                number = -1
            if number < 0 or number >= len(slots.slots):
                return self.add_slowly(topic, value, key, partition, timestamp_ms, headers)
        elif self.chooses:
            return self.add_slowly(topic, value, key, partition, timestamp_ms, headers)
        elif key is None:
            number = slots.sticky
        else:
            number = (
                hash_key(<const uint8_t *> <char *> (<bytes> key), len(<bytes> key)) & 0x7FFFFFFF
            ) % <uint32_t> len(slots.slots)
        slot = <Slot> slots.slots[number]
        if type(slot.builder) is not builder_type:  # None, mostly
            return self.add_slowly(topic, value, key, partition, timestamp_ms, headers)
        try:
            when_ms = now_ms() if timestamp_ms is None else <int64_t> timestamp_ms
        except OverflowError:
            when_ms = -1
        if when_ms < 0:
            return self.add_slowly(topic, value, key, partition, timestamp_ms, headers)
        index = append_plain(
            <PyObject *> slot.builder, when_ms, <PyObject *> key, <PyObject *> value
        )
        if index < 0:
            return self.add_slowly(topic, value, key, partition, when_ms, headers)
        future = RecordFuture.__new__(RecordFuture)
        future.delivery = slot.delivery
        future.index = index
        future.timestamp_ms = when_ms
        return future
