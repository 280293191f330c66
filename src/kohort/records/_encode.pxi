# The way out: records appended one by one, in bulk, or from columns; then built into a batch.

cdef enum:
    # A batch's length is an int32; its compressed form may be a little longer than its records.
    MOST_BYTES = 0x7F000000
    # Records are summed so many bytes at a time as they are written, while the cache has them.
    SUMMED_BYTES = 32768


cdef inline size_t body_size(
    uint64_t time, uint64_t delta, int64_t key_size, int64_t value_size,
    int64_t headers, size_t header_bytes,
) noexcept nogil:
    """Bytes of a record behind its length."""
    return (
        1 + kh_width(time) + kh_width(delta) + kh_width(zigzag(key_size))
        + kh_width(zigzag(value_size)) + <size_t> (key_size if key_size > 0 else 0)
        + <size_t> (value_size if value_size > 0 else 0) + kh_width(zigzag(headers)) + header_bytes
    )


cdef inline uint8_t *put_field(uint8_t *p, const uint8_t *data, int64_t size) noexcept nogil:
    """A length and its bytes; -1 is null."""
    p = put_varint(p, zigzag(size))
    if size > 0:
        memcpy(p, data, <size_t> size)
        p += size
    return p


cdef struct Field:
    const uint8_t *data
    int64_t size  # -1: null


cdef struct Draft:
    # What has been appended: `records.data` leaves room for the header in front.
    Vec records
    Vec scratch  # the headers of one record
    int32_t count
    int64_t base_timestamp
    int64_t max_timestamp
    size_t max_bytes
    size_t alone_bytes
    bint alone  # its one record is larger than that: nothing joins it
    size_t summed  # up to here `sum` reaches, from behind the header
    uint32_t sum
    bint sums  # false when they are compressed first


cdef int add_record(
    Draft *d, int64_t timestamp, Field key, Field value, int64_t headers
) noexcept nogil:
    """Appends one record, its headers standing in `scratch`; 1 when it does not fit, -1 memory."""
    cdef int64_t since = (
        0 if d.count == 0 else <int64_t> (<uint64_t> timestamp - <uint64_t> d.base_timestamp)
    )
    cdef uint64_t time = zigzag(since)
    cdef uint64_t delta = zigzag(d.count)
    cdef size_t size = body_size(time, delta, key.size, value.size, headers, d.scratch.size)
    cdef size_t after = d.records.size + kh_width(zigzag(<int64_t> size)) + size
    cdef bint large = after - d.records.size + HEADER > d.alone_bytes
    cdef uint8_t *p
    if d.count and (after > d.max_bytes or large or d.alone):
        return 1
    if after > MOST_BYTES or d.count == 0x7FFFFFFF:
        return 1
    if reserve(&d.records, after):
        return -1
    p = put_varint(d.records.data + d.records.size, zigzag(<int64_t> size))
    p[0] = 0
    p = put_varint(p + 1, time)
    p = put_varint(p, delta)
    p = put_field(p, key.data, key.size)
    p = put_field(p, value.data, value.size)
    p = put_varint(p, zigzag(headers))
    if d.scratch.size:
        memcpy(p, d.scratch.data, d.scratch.size)
    if d.count == 0:
        d.base_timestamp = d.max_timestamp = timestamp
        d.alone = large
    elif timestamp > d.max_timestamp:
        d.max_timestamp = timestamp
    d.records.size = after
    d.count += 1
    if after - d.summed >= SUMMED_BYTES and d.sums:
        d.sum = kh_crc_on(d.sum, d.records.data + d.summed, after - d.summed)
        d.summed = after
    return 0


cdef int add_header(Vec *scratch, Field name, Field value) noexcept nogil:
    cdef size_t most = scratch.size + 20 + <size_t> name.size
    if value.size > 0:
        most += <size_t> value.size
    cdef uint8_t *p
    if most > MOST_BYTES or reserve(scratch, most):
        return -1
    p = put_field(scratch.data + scratch.size, name.data, name.size)
    p = put_field(p, value.data, value.size)
    scratch.size = <size_t> (p - scratch.data)
    return 0


cdef inline int field_of(object data, Field *field, Py_buffer *view) except -1:
    """Points `field` at the bytes of `data`; 1 when `view` must be released afterwards."""
    if data is None:
        field.data = NULL
        field.size = -1
        return 0
    if type(data) is bytes:
        field.data = <const uint8_t *> <char *> (<bytes> data)
        field.size = len(<bytes> data)
        return 0
    PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    field.data = <const uint8_t *> view.buf
    field.size = view.len
    return 1


cdef void seal(uint8_t *batch, size_t size, uint32_t sum, size_t summed) noexcept:
    """Fills in the length and the CRC of a batch that is otherwise whole.

    `sum` is that of the bytes from the header's end to `summed`.
    """
    cdef uint32_t head = kh_crc_on(0xFFFFFFFF, batch + CRC_FROM, HEADER - CRC_FROM)
    if summed == HEADER:
        sum = head
    else:
        sum ^= kh_crc_moved(head, summed - HEADER)
    put32(batch + 8, <uint32_t> (size - PREFIX))
    put32(batch + 17, ~kh_crc_on(sum, batch + summed, size - summed))


@cython.final
cdef class BatchBuilder:
    """Gathers the records of one batch. The contract is `pure.BatchBuilder`'s."""

    cdef Draft draft
    cdef size_t usual  # bytes of the last batch that was taken: the next will be much the same
    cdef readonly object compression
    cdef readonly object level

    def __cinit__(self, compression=Compression.NONE, max_bytes=MOST_BYTES, *, level=None):
        memset(&self.draft, 0, sizeof(Draft))
        self.usual = 0
        self.compression = Compression(compression)
        self.draft.sums = not self.compression
        self.level = level
        if level is not None:
            check_level(self.compression, level)
        self.max_bytes = max_bytes
        self.alone_bytes = MOST_BYTES
        self.clear()

    def __dealloc__(self):
        release(&self.draft.records)
        release(&self.draft.scratch)

    def __len__(self):
        return self.draft.count

    @property
    def size(self):
        return self.draft.records.size

    @property
    def max_bytes(self):
        return self.draft.max_bytes

    @max_bytes.setter
    def max_bytes(self, size):
        self.draft.max_bytes = min(max(size, HEADER), MOST_BYTES)

    @property
    def alone_bytes(self):
        return self.draft.alone_bytes

    @alone_bytes.setter
    def alone_bytes(self, size):
        self.draft.alone_bytes = min(max(size, HEADER), MOST_BYTES)

    @property
    def base_timestamp(self):
        return self.draft.base_timestamp

    @property
    def max_timestamp(self):
        return self.draft.max_timestamp

    def clear(self):
        if reserve(&self.draft.records, HEADER):
            raise MemoryError
        self.draft.records.size = self.draft.summed = HEADER
        self.draft.sum = 0
        self.draft.count = 0
        self.draft.alone = False
        self.draft.base_timestamp = self.draft.max_timestamp = -1

    def append(self, int64_t timestamp, key, value, headers=()):
        cdef int status = self._append(timestamp, key, value, headers)
        if status:
            return self._refused(status)
        return self.draft.count - 1

    def extend(self, timestamps, keys, values, headers=None, *, Py_ssize_t start=0):
        cdef Py_ssize_t row = start, stop = len(values)
        cdef bint fixed = isinstance(timestamps, int)
        cdef int64_t timestamp = timestamps if fixed else -1
        cdef int status
        check_lengths(stop, keys, headers, None if fixed else timestamps)
        while row < stop:
            if not fixed:
                timestamp = timestamps[row]
            status = self._append(
                timestamp, None if keys is None else keys[row], values[row],
                () if headers is None else headers[row],
            )
            if status:
                self._refused(status)
                break
            row += 1
        return row - start

    def extend_columns(
        self, timestamps, key, value, headers=None, *, Py_ssize_t start=0, Py_ssize_t stop,
        rows=None, Py_ssize_t of=0,
    ):
        cdef Py_ssize_t row = start
        cdef ColumnReader reader = ColumnReader(
            timestamps, key, value, headers, start, stop, rows, of
        )
        cdef int status = 0
        self._make_ready()
        with nogil:
            while row < stop and status == 0:
                row = reader.add_usual(&self.draft, row, stop)
                if row < stop:
                    status = reader.add(&self.draft, row)
                    if status == 0:
                        row += 1
        if status == 2:
            raise UsageError(f"row {row} of a column has offsets outside the column's data")
        if status:
            self._refused(status)
        return row - start

    def build(
        self, *, int64_t base_offset=0, int32_t leader_epoch=-1, int64_t producer_id=-1,
        int16_t producer_epoch=-1, int32_t base_sequence=-1, bint transactional=False,
        bint control=False, append_time_ms=None,
    ):
        cdef Draft *d = &self.draft
        cdef uint8_t *p = d.records.data
        cdef int attributes = self.compression
        cdef int64_t max_timestamp = d.max_timestamp
        cdef bytes out
        if append_time_ms is not None:
            max_timestamp = append_time_ms
            attributes |= 0x08
        attributes |= (0x10 if transactional else 0) | (0x20 if control else 0)
        self._head(attributes, max_timestamp, producer_id, producer_epoch, base_sequence)
        put64(p, <uint64_t> base_offset)
        put32(p + 12, <uint32_t> leader_epoch)
        if self.compression:
            return bytes(self._packed())
        out = PyBytes_FromStringAndSize(<const char *> p, <Py_ssize_t> d.records.size)
        seal(<uint8_t *> <char *> out, d.records.size, d.sum, d.summed)
        return out

    def take(
        self, *, int64_t producer_id=-1, int16_t producer_epoch=-1, int32_t base_sequence=-1,
        bint transactional=False,
    ):
        cdef Draft *d = &self.draft
        cdef int attributes = self.compression
        cdef size_t size = d.records.size
        attributes |= 0x10 if transactional else 0
        self._head(attributes, d.max_timestamp, producer_id, producer_epoch, base_sequence)
        if self.compression:
            out = self._packed()
            release(&d.records)
        else:
            seal(d.records.data, size, d.sum, d.summed)
            out = take(&d.records, 3 * size)  # it is sent soon
        self.usual = min(size, d.max_bytes)
        self.clear()
        return out

    cdef int _head(
        self, int attributes, int64_t max_timestamp, int64_t producer_id, int16_t producer_epoch,
        int32_t base_sequence,
    ) except -1:
        """The header but for length and CRC; base offset and leader epoch are nobody's yet."""
        cdef Draft *d = &self.draft
        cdef uint8_t *p = d.records.data
        if d.count == 0:
            raise UsageError("a batch without records cannot be built; append first")
        put64(p, 0)
        put32(p + 12, 0xFFFFFFFF)
        p[16] = 2
        put32(p + 21, <uint32_t> attributes << 16 | <uint32_t> (d.count - 1) >> 16)
        put32(p + 23, <uint32_t> (d.count - 1))
        put64(p + 27, <uint64_t> d.base_timestamp)
        put64(p + 35, <uint64_t> max_timestamp)
        put64(p + 43, <uint64_t> producer_id)
        p[51] = <uint8_t> (producer_epoch >> 8)
        p[52] = <uint8_t> producer_epoch
        put32(p + 53, <uint32_t> base_sequence)
        put32(p + 57, <uint32_t> d.count)
        return 0

    cdef object _packed(self):
        """The batch with its records compressed, as a view of memory of its own."""
        cdef Draft *d = &self.draft
        cdef Memory memory = Memory.__new__(Memory)
        cdef Py_ssize_t size = <Py_ssize_t> d.records.size - HEADER
        cdef Py_ssize_t room = compress_bound(self.compression, size)
        draw(&memory.vec, <size_t> (HEADER + room))
        memory.vec.size = HEADER + <size_t> <Py_ssize_t> compress_into(
            self.compression,
            PyMemoryView_FromMemory(<char *> d.records.data + HEADER, size, PyBUF_READ),
            PyMemoryView_FromMemory(<char *> memory.vec.data + HEADER, room, PyBUF_WRITE),
            self.level,
        )
        memcpy(memory.vec.data, d.records.data, HEADER)
        seal(memory.vec.data, memory.vec.size, 0, HEADER)
        return memoryview(memory).toreadonly()

    cdef int _make_ready(self) except -1:
        """Room for a whole batch before its first record, if there was a batch before."""
        cdef Vec fresh
        if self.draft.count or self.draft.records.room >= self.usual:
            return 0
        memset(&fresh, 0, sizeof(Vec))
        draw(&fresh, self.usual)
        fresh.size = HEADER
        release(&self.draft.records)
        self.draft.records = fresh
        return 0

    cdef int _append(self, int64_t timestamp, key, value, headers) except -1:
        cdef Field key_field, value_field
        cdef Py_buffer key_view, value_view
        cdef int held_key = 0, held_value = 0
        cdef int64_t count = 0
        cdef int status
        if self.draft.count == 0:
            self._make_ready()
        self.draft.scratch.size = 0
        if headers:
            count = self._scratch_headers(headers)
        try:
            held_key = field_of(key, &key_field, &key_view)
            held_value = field_of(value, &value_field, &value_view)
            status = add_record(&self.draft, timestamp, key_field, value_field, count)
        finally:
            if held_key:
                PyBuffer_Release(&key_view)
            if held_value:
                PyBuffer_Release(&value_view)
        if status < 0:
            raise MemoryError
        return status

    cdef int64_t _scratch_headers(self, headers) except -1:
        """Encodes the headers of one record into `scratch`; returns how many they are."""
        cdef Field name_field, value_field
        cdef Py_buffer view
        cdef int64_t count = 0
        cdef int held, status
        for name, value in headers:
            encoded = (<str?> name).encode()
            field_of(encoded, &name_field, &view)
            held = field_of(value, &value_field, &view)
            status = add_header(&self.draft.scratch, name_field, value_field)
            if held:
                PyBuffer_Release(&view)
            if status:
                raise MemoryError
            count += 1
        return count

    cdef object _refused(self, int status):
        """-1 for a full batch, an error for a record that would fit into none."""
        if status < 0:
            raise MemoryError
        if self.draft.count == 0:
            raise RecordTooLargeError("a record of more than 2 GB cannot be encoded")
        return -1


cdef int64_t append_plain(
    PyObject *builder, int64_t timestamp, PyObject *key, PyObject *value
) noexcept:
    """`BatchBuilder.append` of `bytes` or None without headers, for callers that are compiled.

    -1 whenever there is more to do or to say than that: `append` does it and says it.
    """
    cdef BatchBuilder target = <BatchBuilder> builder
    cdef Draft *d = &target.draft
    cdef Field key_field, value_field
    if d.count == 0 and d.records.room < target.usual:
        return -1
    d.scratch.size = 0
    plain_field(key, &key_field)
    plain_field(value, &value_field)
    return d.count - 1 if add_record(d, timestamp, key_field, value_field, 0) == 0 else -1


cdef inline void plain_field(PyObject *data, Field *field) noexcept:
    if data == <PyObject *> None:
        field.data = NULL
        field.size = -1
    else:
        field.data = <const uint8_t *> PyBytes_AsString(<object> data)
        field.size = PyBytes_Size(<object> data)


APPEND_PLAIN = PyCapsule_New(<void *> append_plain, "kohort.records.append_plain", NULL)


def check_lengths(Py_ssize_t rows, *columns):
    """Raises `UsageError` when a column has another number of rows than the values."""
    for column in columns:
        if column is not None and len(column) != rows:
            raise UsageError(f"{rows} values, but {len(column)} rows in another column")
