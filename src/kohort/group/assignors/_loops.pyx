# cython: embedsignature=False
"""The loops over single partitions, compiled. Their contract is `loops.py`'s, line by line."""

cimport cython
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcmp, memcpy

from array import array
from operator import index

from kohort.errors import DecodeError

cdef extern from "Python.h":
    int PyTuple_SetItem(PyObject *tuple, Py_ssize_t at, PyObject *stolen) except -1
    object PyTuple_New(Py_ssize_t size)
    PyObject *new_tuple "PyTuple_New"(Py_ssize_t size) except NULL
    void Py_CLEAR(PyObject *)
    void PyObject_GC_UnTrack(PyObject *)
    PyObject *new_long "PyLong_FromLong"(long value) except NULL

cdef int FREE = -1
cdef int TWICE = 1
cdef int STRANGE = 2


cdef inline Py_ssize_t number_of(object value) except? -1:
    return index(value) if type(value) is not int else <Py_ssize_t> value


def note(row, spans, int who, partitions, topics=None):
    cdef int[::1] owners = row
    cdef Py_ssize_t start, stop, at
    cdef int found = 0
    for topic, numbers in partitions.items():
        span = spans.get(topic)
        if span is None or (topics is not None and topic not in topics):
            if len(numbers):
                found |= STRANGE
            continue
        start, stop = span
        if type(numbers) is tuple:
            for number in <tuple> numbers:
                at = start + number_of(number)
                if not start <= at < stop:
                    found |= STRANGE
                elif owners[at] == FREE:
                    owners[at] = who
                else:
                    found |= TWICE
        else:
            for number in numbers:
                at = start + number_of(number)
                if not start <= at < stop:
                    found |= STRANGE
                elif owners[at] == FREE:
                    owners[at] = who
                else:
                    found |= TWICE
    return found


def tally(row, stretches, counts):
    cdef int[::1] owners = row, many = counts
    cdef Py_ssize_t at, start, stop
    for start, stop in stretches:
        for at in range(start, stop):
            if owners[at] >= 0:
                many[owners[at]] += 1


cdef object as_array(int32_t *first, Py_ssize_t size):
    made = array("i")
    made.frombytes(PyBytes_FromStringAndSize(<char *> first, size * sizeof(int32_t)))
    return made


def keep(row, stretches, room):
    cdef int[::1] owners = row, left = room
    cdef Py_ssize_t at, start, stop, most = 0, many_free = 0, many_given = 0
    cdef int who
    for start, stop in stretches:
        most += stop - start
    cdef int32_t *places = <int32_t *> PyMem_Malloc(2 * most * sizeof(int32_t) + 1)
    if places is NULL:
        raise MemoryError
    try:
        for start, stop in stretches:
            for at in range(start, stop):
                who = owners[at]
                if who < 0:
                    places[many_free] = <int32_t> at
                    many_free += 1
                elif left[who] > 0:
                    left[who] -= 1
                    continue
                else:
                    places[most + many_given] = <int32_t> at
                    many_given += 1
                owners[at] = FREE
        return as_array(places, many_free), as_array(places + most, many_given)
    finally:
        PyMem_Free(places)


def deal(row, free, room, members):
    cdef int[::1] owners = row, left = room, places = free
    cdef int[::1] active = array("i", members)
    cdef Py_ssize_t at = 0, end = places.shape[0], many = 0, step, still
    for step in range(active.shape[0]):
        if left[active[step]] > 0:
            active[many] = active[step]
            many += 1
    while many and at < end:
        still = 0
        for step in range(many):
            if at == end:
                break
            owners[places[at]] = active[step]
            left[active[step]] -= 1
            at += 1
            if left[active[step]] > 0:
                active[still] = active[step]
                still += 1
        many = still


def hand_out(row, spans, shares):
    cdef int[::1] owners = row
    cdef Py_ssize_t start, stop, at, members = len(shares)
    cdef int who
    cdef list given = list(shares)
    # By member: how many it has of this topic, then how many of them are still to be written.
    cdef int[::1] many = array("i", [0]) * (members + 1)
    cdef int[::1] size = array("i", [0]) * (members + 1)
    # A tuple is filled before anybody else sees it.
    cdef PyObject **made = <PyObject **> PyMem_Calloc(members + 1, sizeof(PyObject *))
    if made is NULL:
        raise MemoryError
    try:
        for topic, (start, stop) in spans.items():
            for at in range(start, stop):
                if owners[at] >= 0:
                    many[owners[at]] += 1
            for at in range(start, stop):
                who = owners[at]
                if who < 0:
                    continue
                if made[who] is NULL:
                    size[who] = many[who]
                    made[who] = new_tuple(size[who])
                PyTuple_SetItem(made[who], size[who] - many[who], new_long(at - start))
                many[who] -= 1
                if not many[who]:
                    # Numbers are in no cycle. A hundred thousand tuples less to be looked at.
                    PyObject_GC_UnTrack(made[who])
                    given[who][topic] = <object> made[who]
                    Py_CLEAR(made[who])
    finally:
        for at in range(members):
            Py_CLEAR(made[at])
        PyMem_Free(made)


cdef bint all_may_stay(int[::1] owners, Py_ssize_t start, int who, tuple numbers) except -1:
    cdef int owner
    for number in numbers:
        owner = owners[start + <Py_ssize_t> number]
        if owner != FREE and owner != who:
            return False
    return True


def held(row, spans, int who, partitions):
    cdef int[::1] owners = row
    cdef Py_ssize_t start
    cdef dict rest = {}
    for topic, numbers in partitions.items():
        start = (<tuple> spans[topic])[0]
        if not all_may_stay(owners, start, who, tuple(numbers)):
            rest[topic] = tuple(
                [n for n in numbers if owners[start + <Py_ssize_t> n] in (FREE, who)]
            )
    return {**partitions, **rest} if rest else partitions


cdef inline int32_t int32_at(const uint8_t *data) noexcept nogil:
    return <int32_t> (
        (<unsigned int> data[0]) << 24 | (<unsigned int> data[1]) << 16
        | (<unsigned int> data[2]) << 8 | <unsigned int> data[3]
    )


cdef inline void put_int32(uint8_t *out, int32_t value) noexcept nogil:
    out[0] = <uint8_t> (<unsigned int> value >> 24)
    out[1] = <uint8_t> (<unsigned int> value >> 16)
    out[2] = <uint8_t> (<unsigned int> value >> 8)
    out[3] = <uint8_t> value


cdef Py_ssize_t array_size(
    const uint8_t *raw, Py_ssize_t at, Py_ssize_t end, int smallest
) except -1:
    cdef Py_ssize_t size
    if at + 4 > end:
        raise DecodeError(f"it ends at byte {end}, within a length")
    size = int32_at(raw + at)
    if size < 0 or size > (end - at - 4) // smallest:
        raise DecodeError(f"{size} elements at byte {at} of {end}")
    return size


@cython.final
cdef class PartitionReader:
    # The names in the order of the last member: most members name the same topics in that order.
    cdef list raws
    cdef list names
    cdef dict known

    def __init__(self):
        self.raws = []
        self.names = []
        self.known = {}

    cdef str name_of(self, const uint8_t *raw, Py_ssize_t size, Py_ssize_t turn):
        cdef bytes guess, made
        cdef str name
        if turn < len(self.raws):
            guess = <bytes> self.raws[turn]
            if len(guess) == size and memcmp(PyBytes_AsString(guess), raw, size) == 0:
                return <str> self.names[turn]
        made = PyBytes_FromStringAndSize(<char *> raw, size)
        found = self.known.get(made)
        if found is None:
            try:
                found = made.decode()
            except UnicodeDecodeError as error:
                raise DecodeError(f"a topic's name: {error}") from None
            self.known[made] = found
        name = found
        if turn < len(self.raws):
            self.raws[turn], self.names[turn] = made, name
        elif turn == len(self.raws):
            self.raws.append(made)
            self.names.append(name)
        return name

    def read(self, bytes data not None, Py_ssize_t at):
        cdef const uint8_t *raw = <const uint8_t *> PyBytes_AsString(data)
        cdef Py_ssize_t end = len(data), start, length, size, turn, k
        cdef Py_ssize_t last_start = 0, last_length = 0
        cdef Py_ssize_t topics = array_size(raw, at, end, 6)
        cdef int32_t value, before
        cdef bint tidy = True, ascending
        cdef dict found = {}
        cdef object numbers
        cdef str name
        at += 4
        for turn in range(topics):
            start = at + 2
            if start > end:
                raise DecodeError(f"it ends at byte {end}, within a name")
            length = raw[at] << 8 | raw[at + 1]
            at = start + length
            if at > end or length > 0x7FFF:
                raise DecodeError(f"a name that ends at byte {at} of {end}")
            name = self.name_of(raw + start, length, turn)
            size = array_size(raw, at, end, 4)
            at += 4
            numbers = PyTuple_New(size)
            ascending, before = True, -1 << 31
            for k in range(size):
                value = int32_at(raw + at)
                at += 4
                if value < before:
                    ascending = False
                before = value
                PyTuple_SetItem(<PyObject *> numbers, k, new_long(value))
            PyObject_GC_UnTrack(<PyObject *> numbers)  # as in `hand_out`
            if not ascending:
                numbers = tuple(sorted(numbers))
            if size and (not turn or after(raw, start, length, last_start, last_length)):
                found[name] = numbers
                last_start, last_length = start, length
            else:
                tidy = False
                found[name] = found.get(name, ()) + numbers
        if not tidy:
            found = {name: tuple(sorted(found[name])) for name in sorted(found) if found[name]}
        return found, at


cdef inline bint after(
    const uint8_t *raw, Py_ssize_t start, Py_ssize_t length, Py_ssize_t other, Py_ssize_t size
) noexcept nogil:
    """Whether one name comes after the other. The order of UTF-8 is that of the characters."""
    cdef int order = memcmp(raw + start, raw + other, min(length, size))
    return order > 0 or (order == 0 and length > size)


@cython.final
cdef class PartitionWriter:
    cdef dict known

    def __init__(self):
        self.known = {}

    cdef bytes name_of(self, str topic):
        raw = topic.encode()
        made = len(raw).to_bytes(2, "big") + raw
        self.known[topic] = made
        return made

    def write(self, partitions):
        cdef list topics = [], numbers = []
        cdef tuple each
        cdef Py_ssize_t size = 4, at = 4, count, k
        cdef bytes name, out
        cdef uint8_t *raw
        cdef bint tidy = True
        last = None
        for topic, some in partitions.items():
            each = some if type(some) is tuple else tuple(some)
            count = len(each)
            if not count:
                continue
            if last is not None and not last < topic:
                tidy = False
            last = topic
            found = self.known.get(topic)
            name = self.name_of(topic) if found is None else <bytes> found
            topics.append(name)
            numbers.append(each)
            size += len(name) + 4 + 4 * count
        if not tidy:
            return self.write({topic: partitions[topic] for topic in sorted(partitions)})
        out = PyBytes_FromStringAndSize(NULL, size)
        raw = <uint8_t *> PyBytes_AsString(out)
        put_int32(raw, <int32_t> len(topics))
        for k in range(len(topics)):
            name, each = <bytes> topics[k], numbers[k]
            memcpy(raw + at, PyBytes_AsString(name), len(name))
            at += len(name)
            count = len(each)
            put_int32(raw + at, <int32_t> count)
            at += 4
            for number in <tuple> each:
                put_int32(raw + at, <int32_t> number)
                at += 4
        return out
