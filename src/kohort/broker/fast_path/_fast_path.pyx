# cython: language_level=3
"""What the fast path does for each request that it takes, compiled.

Rules:
- Only common requests are taken: Produce v9 to v13, acks 1 or -1, one topic, one partition,
  one valid batch outside of transactions; frequent group requests (`_asked.pxi`).
  Everything else is None and takes the slow path, which alone refuses and explains.
- Answers here have exactly the bytes that the slow path would send.
- Small batches are copied together for their write. A large one is stamped and written where it was
  received; its frame is let go as soon as it has been written.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kohort.errors import CorruptRecordError
from kohort.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from kohort.records.implementation import check_records

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *start, Py_ssize_t size, const char *errors)

cdef extern from "../../records/_crc32c.h":
    const char *kh_crc_init()
    uint32_t kh_crc32c(uint32_t crc, const uint8_t *data, size_t size) nogil

cdef extern from "../../records/_check.h":
    ctypedef struct Checked "kh_checked":
        int64_t earliest
        int64_t latest

    int walk_records "kh_check_records" (
        const uint8_t *p, const uint8_t *end, int32_t count, int64_t base_timestamp, Checked *out
    ) nogil

kh_crc_init()

cdef enum:
    COPIED_MAX = 16_384    # of a frame; larger ones are better not copied
    UNLOCK_BYTES = 1 << 20
    FIRST_VERSION = 9      # flexible
    TOPIC_IDS_FROM = 13
    LAST_VERSION = 13
    HEADER = 61
    PREFIX = 12
    CRC_FROM = 21
    MIN_RECORD = 7
    LAST_CODEC = 4
    ID_BYTES = 16
    # An answer but for its topic and partition: size, correlation id, tags, count of topics; then
    # error, base offset, append time, log start, record errors, message, tags (two), throttle, tags
    ANSWER_HEAD = 10
    ANSWER_TAIL = 2 + 8 + 8 + 8 + 1 + 1 + 1 + 1 + 4 + 1


include "../../records/_numbers.pxi"
include "_group_requests.pxi"
include "_gathered.pxi"


@cython.final
cdef class Entry:
    """One request in the fast path, and its place in the order of its connection's answers.

    To the log it is its batch's header, to the connection a call that is answered with bytes.
    """

    cdef readonly object peer, frame
    cdef readonly str client_id
    """Not read: nobody asks for it."""
    cdef readonly bytes target
    """Topic and partition as in the request, and in the answer to it."""
    cdef readonly int api, api_version, correlation_id
    cdef public bint answered
    cdef public object response, given_up
    cdef Py_ssize_t start
    cdef readonly Py_ssize_t size
    cdef readonly int64_t base_offset, max_timestamp, producer_id
    cdef readonly int64_t base_timestamp
    """The earliest time of its records, -1 where none has one."""
    cdef readonly int last_offset_delta, producer_epoch, base_sequence
    cdef readonly bint is_transactional, is_control
    cdef bint stays
    """Its batch is written from where it was received."""

    @property
    def last_sequence(self):
        """As `BatchHeader.last_sequence`."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    def place(self):
        """`(topic's name or its id, partition)`; None for a name that is no text."""
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AsString(self.target)
        cdef Py_ssize_t size = len(self.target)
        index = <int32_t> be32(p + size - 4)
        if self.api_version >= TOPIC_IDS_FROM:
            return self.target[:ID_BYTES], index
        try:
            return self.target[1:size - 5].decode(), index
        except UnicodeDecodeError:
            return None


def take(peer, frame):
    """The request in a frame (without its size) if it is a usual one, else None."""
    cdef Py_buffer view
    cdef Entry entry
    cdef int api
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        # The API's key first: most frames that are none of ours are seen by that.
        if not view.len > 16:
            return None
        api = (<const uint8_t *> view.buf)[1]
        if api == HEARTBEAT or api == OFFSET_COMMIT or api == CONSUMER_HEARTBEAT:
            return asked_of(peer, frame, <const uint8_t *> view.buf, view.len)
        if api != 0 or view.len <= 80:
            return None
        entry = Entry.__new__(Entry)
        entry.stays = view.len > COPIED_MAX and not view.readonly
        if not read(entry, <const uint8_t *> view.buf, view.len):
            return None
    finally:
        PyBuffer_Release(&view)
    entry.peer, entry.frame, entry.client_id = peer, frame, ""
    return entry


cdef bint read(Entry entry, const uint8_t *start, Py_ssize_t size) except -1:
    cdef const uint8_t *p = start
    cdef const uint8_t *end = start + size
    cdef const uint8_t *target
    cdef Py_ssize_t n
    cdef int shift = 0
    cdef int version = be16(p + 2)
    if p[0] != 0 or not FIRST_VERSION <= version <= LAST_VERSION:
        return False
    entry.api_version = version
    entry.correlation_id = <int32_t> be32(p + 4)
    n = be16(p + 8)
    p += 10
    if n < -1 or end - p < max(n, 0) + 1 + 1 + 2 + 4 + 1 + ID_BYTES + 1 + 4 + 1:
        return False
    while n > 0:
        if p[0] > 127:  # a client id that may not be UTF-8
            return False
        p += 1
        n -= 1
    # No tagged fields, no transaction; acks; the time-out (there is nobody to wait for); one topic.
    if p[0] != 0 or p[1] != 0 or be16(p + 2) not in (1, -1) or p[8] != 2:
        return False
    p += 9
    target = p
    if version >= TOPIC_IDS_FROM:
        p += ID_BYTES
    else:
        if not 1 < p[0] < 128:
            return False
        p += p[0]
    if end - p < 1 + 4 + 1 or p[0] != 2:
        return False
    p += 5
    entry.target = PyBytes_FromStringAndSize(<const char *> target, p - target)
    n = 0
    while p < end and shift < 28:
        n |= <Py_ssize_t> (p[0] & 127) << shift
        shift += 7
        p += 1
        if (p - 1)[0] < 128:
            break
    else:
        return False
    n -= 1
    # The end of the request: no tagged fields of partition, topic and request.
    if n < HEADER or end - p != n + 3 or p[n] != 0 or p[n + 1] != 0 or p[n + 2] != 0:
        return False
    entry.start, entry.size = p - start, n
    return sound(entry, p, n)


cdef bint sound(Entry entry, const uint8_t *p, Py_ssize_t size) except -1:
    """Read and check the header of a batch; see `kohort.records.batch` for what must hold."""
    cdef int64_t count = <int32_t> be32(p + 57)
    cdef int attributes = be16(p + 21)
    if <int32_t> be32(p + 8) != size - PREFIX or p[16] != 2 or be64(p) != 0:
        return False
    if attributes > LAST_CODEC or attributes < 0:  # another bit is set, or there is no such codec
        return False
    entry.last_offset_delta = <int32_t> be32(p + 23)
    entry.base_timestamp = be64(p + 27)
    entry.max_timestamp = be64(p + 35)
    entry.producer_id = be64(p + 43)
    entry.producer_epoch = be16(p + 51)
    entry.base_sequence = <int32_t> be32(p + 53)
    if count <= 0 or count != <int64_t> entry.last_offset_delta + 1:
        return False
    if entry.producer_id != -1 and (
        entry.producer_id < 0 or entry.producer_epoch < 0 or entry.base_sequence < 0
    ):
        return False
    if not crc_right(p, size):
        return False
    if attributes:
        return packed_sound(entry, p, size, attributes)
    return count * MIN_RECORD <= size - HEADER and plain_sound(entry, p, size, <int32_t> count)


cdef bint crc_right(const uint8_t *p, Py_ssize_t size) noexcept:
    """Others may run meanwhile where it takes long; and so below."""
    cdef uint32_t crc
    if size < UNLOCK_BYTES:
        crc = kh_crc32c(0, p + CRC_FROM, <size_t> (size - CRC_FROM))
    else:
        with nogil:
            crc = kh_crc32c(0, p + CRC_FROM, <size_t> (size - CRC_FROM))
    return crc == be32(p + 17)


cdef bint plain_sound(Entry entry, const uint8_t *p, Py_ssize_t size, int32_t count) noexcept:
    """Walk the records; note the time of the earliest."""
    cdef Checked checked
    cdef int64_t base = entry.base_timestamp
    cdef int fault
    if size < UNLOCK_BYTES:
        fault = walk_records(p + HEADER, p + size, count, base, &checked)
    else:
        with nogil:
            fault = walk_records(p + HEADER, p + size, count, base, &checked)
    if fault or checked.latest != entry.max_timestamp:
        return False
    entry.base_timestamp = checked.earliest
    return True


cdef bint packed_sound(Entry entry, const uint8_t *p, Py_ssize_t size, int codec) except -1:
    """The same for compressed records."""
    records = PyMemoryView_FromMemory(<char *> p + HEADER, size - HEADER, PyBUF_READ)
    try:
        checked = check_records(
            records, codec, entry.last_offset_delta + 1, entry.base_timestamp,
            DEFAULT_MAX_DECOMPRESSED_BYTES,
        )
    except CorruptRecordError:
        return False
    if checked.latest != entry.max_timestamp:
        return False
    entry.base_timestamp = checked.earliest
    return True


@cython.final
cdef class Run:
    """Entries of one partition, in the order in which the log will store their batches.

    As a whole it looks like the header of one batch with all the records, as the log wants it.
    """

    cdef readonly list entries
    cdef readonly Py_ssize_t size, largest
    cdef readonly int64_t base_timestamp, max_timestamp
    """The earliest and the latest time; the earliest is -1 where no batch has one."""
    cdef readonly int64_t records
    cdef readonly list marks
    """Of each batch `(last offset, position, size, max timestamp)`, once it is `stamped`."""
    cdef Py_ssize_t copied
    cdef uint8_t *data

    def __cinit__(self):
        self.entries = []
        self.base_timestamp = self.max_timestamp = -1

    def __dealloc__(self):
        PyMem_Free(self.data)

    def __len__(self):
        return len(self.entries)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.copied if self.data != NULL else 0, 1, flags)

    @property
    def last_offset_delta(self):
        """As of one batch."""
        return self.records - 1

    def add(self, Entry entry):
        """One more at the end."""
        self.entries.append(entry)
        self.size += entry.size
        if not entry.stays:
            self.copied += entry.size
        self.largest = max(self.largest, entry.size)
        self.records += entry.last_offset_delta + 1
        self.max_timestamp = max(self.max_timestamp, entry.max_timestamp)
        if entry.base_timestamp >= 0 and (
            self.base_timestamp < 0 or entry.base_timestamp < self.base_timestamp
        ):
            self.base_timestamp = entry.base_timestamp

    def stamped(self, int64_t offset, int64_t position, int leader_epoch):
        """All batches in order, in some pieces, with their offsets and the leader epoch, to be
        written at `position`. Once."""
        cdef Entry entry
        cdef Py_buffer view
        cdef Py_ssize_t at = 0, told = 0
        cdef uint8_t *p
        cdef list pieces = []
        copies = None
        if self.copied:
            self.data = <uint8_t *> PyMem_Malloc(self.copied)
            if self.data == NULL:
                raise MemoryError
            copies = memoryview(self)
        self.marks = []
        for entry in self.entries:
            PyObject_GetBuffer(entry.frame, &view, PyBUF_WRITABLE if entry.stays else PyBUF_SIMPLE)
            p = <uint8_t *> view.buf + entry.start
            if entry.stays:
                if at > told:
                    pieces.append(copies[told:at])
                    told = at
                pieces.append(entry.frame[entry.start:entry.start + entry.size])
            else:
                memcpy(self.data + at, p, entry.size)
                p = self.data + at
                at += entry.size
            put64(p, <uint64_t> offset)
            put32(p + PREFIX, <uint32_t> leader_epoch)
            PyBuffer_Release(&view)
            entry.frame = None
            entry.base_offset = offset
            offset += entry.last_offset_delta + 1
            self.marks.append((offset - 1, position, entry.size, entry.max_timestamp))
            position += entry.size
        if at > told:
            pieces.append(copies[told:at] if told else copies)
        return pieces

    def answers(self, int64_t log_start_offset):
        """Give every entry its answer: its offset, without an error."""
        cdef Entry entry
        for entry in self.entries:
            entry.response = [answer(entry, log_start_offset)]
            entry.answered = True


cdef bytes answer(Entry entry, int64_t log_start_offset):
    cdef Py_ssize_t target = len(entry.target)
    cdef Py_ssize_t size = ANSWER_HEAD + target + ANSWER_TAIL
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *p = <uint8_t *> PyBytes_AsString(made)
    put32(p, <uint32_t> (size - 4))
    put32(p + 4, <uint32_t> entry.correlation_id)
    p[8] = 0
    p[9] = 2
    p += ANSWER_HEAD
    memcpy(p, PyBytes_AsString(entry.target), target)
    p += target
    p[0] = p[1] = 0
    put64(p + 2, <uint64_t> entry.base_offset)
    put64(p + 10, <uint64_t> -1)
    put64(p + 18, <uint64_t> log_start_offset)
    p[26] = 1    # no record errors
    p[27] = 0    # no message
    p[28] = p[29] = 0
    put32(p + 30, 0)
    p[34] = 0
    return made
