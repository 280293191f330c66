# Records of one turn as one batch, made where it is to be written from. Part of `_fast_path.pyx`.

@cython.final
cdef class Gathered:
    """One batch of records without headers, uncompressed and of no producer, all of one time.

    To a log it is a `Run` of one batch.
    """

    cdef readonly Py_ssize_t size
    cdef readonly int64_t base_timestamp, max_timestamp
    cdef readonly int last_offset_delta
    cdef readonly list marks
    cdef readonly tuple entries
    """None: no producer is to be noted."""
    cdef bytes data

    def __init__(self, list records, int64_t time_ms):
        """`records`: pairs of key and value, both bytes, or None in place of a value."""
        cdef Py_ssize_t size = HEADER, delta = 0, count = len(records)
        cdef uint8_t *start
        cdef uint8_t *p
        cdef object key, value
        for key, value in records:
            size += framed_size(body_size(key, value, delta))
            delta += 1
        self.data = PyBytes_FromStringAndSize(NULL, size)
        start = <uint8_t *> PyBytes_AsString(self.data)
        self.size, self.entries = size, ()
        self.base_timestamp = self.max_timestamp = time_ms
        self.last_offset_delta = <int> (count - 1)
        p, delta = start + HEADER, 0
        for key, value in records:
            p = put_signed(p, body_size(key, value, delta))
            p[0] = p[1] = 0    # attributes, and how much later than the first
            p = put_signed(p + 2, delta)
            p = put_bytes(p, key)
            p = put_bytes(p, value)
            p[0] = 0           # no headers
            p += 1
            delta += 1
        put32(start + 8, <uint32_t> (size - PREFIX))
        start[16] = 2
        put16(start + 21, 0)
        put32(start + 23, <uint32_t> (count - 1))
        put64(start + 27, <uint64_t> time_ms)
        put64(start + 35, <uint64_t> time_ms)
        put64(start + 43, <uint64_t> -1)
        put16(start + 51, -1)
        put32(start + 53, <uint32_t> -1)
        put32(start + 57, <uint32_t> count)
        put32(start + 17, kh_crc32c(0, start + CRC_FROM, <size_t> (size - CRC_FROM)))

    def stamped(self, int64_t offset, int64_t position, int leader_epoch):
        """The batch with its offset and leader epoch, to be written at `position`. Once."""
        cdef uint8_t *p = <uint8_t *> PyBytes_AsString(self.data)
        put64(p, <uint64_t> offset)
        put32(p + PREFIX, <uint32_t> leader_epoch)
        self.marks = [(offset + self.last_offset_delta, position, self.size, self.max_timestamp)]
        return [self.data]


cdef inline Py_ssize_t signed_size(Py_ssize_t value) noexcept:
    """Bytes of a zigzag varint; of a number that is not negative."""
    cdef Py_ssize_t size = 1
    value <<= 1
    while value > 127:
        size += 1
        value >>= 7
    return size


cdef inline Py_ssize_t framed_size(Py_ssize_t size) noexcept:
    return signed_size(size) + size


cdef inline Py_ssize_t body_size(object key, object value, Py_ssize_t delta):
    return (
        3 + signed_size(delta) + framed_size(len(<bytes> key))
        + (1 if value is None else framed_size(len(<bytes> value)))
    )


cdef inline uint8_t *put_signed(uint8_t *p, Py_ssize_t value) noexcept:
    return put_varint(p, value << 1)


cdef inline uint8_t *put_bytes(uint8_t *p, object data):
    cdef Py_ssize_t size
    if data is None:
        p[0] = 1    # a length of -1
        return p + 1
    size = len(<bytes> data)
    p = put_signed(p, size)
    memcpy(p, PyBytes_AsString(data), size)
    return p + size
