# Records out of columns: one by one with care, those of the usual shape in a loop of their own.

cdef enum:
    SHORT_END = 1 << 21  # what takes three bytes as a varint ends here
    USUAL_BYTES_MAX = 1 << 18
    BLOCK = 32
    FEW_BYTES = 256  # so many are copied in blocks


cdef struct Strings:
    # A BinaryColumn, held open.
    const uint8_t *bits
    const int32_t *offsets
    const uint8_t *data
    Py_ssize_t data_size
    Py_ssize_t first
    bint present


cdef inline int string_at(const Strings *column, Py_ssize_t row, Field *field) noexcept nogil:
    """The bytes of one row; 2 when its offsets lie outside the data."""
    cdef int64_t start, end
    field.data = NULL
    field.size = -1
    if not column.present:
        return 0
    row += column.first
    if column.bits != NULL and not column.bits[row >> 3] >> (row & 7) & 1:
        return 0
    start = column.offsets[row]
    end = column.offsets[row + 1]
    if start < 0 or end < start or end > column.data_size:
        return 2
    field.data = column.data + start
    field.size = end - start
    return 0


cdef inline size_t short_width(uint32_t raw) noexcept nogil:
    return 1 + <size_t> (raw >= 0x80) + <size_t> (raw >= 0x4000)


cdef inline uint8_t *put_short(uint8_t *p, uint32_t raw) noexcept nogil:
    """`put_varint` of a number below SHORT_END."""
    if raw < 0x80:
        p[0] = <uint8_t> raw
        return p + 1
    p[0] = <uint8_t> (raw | 0x80)
    if raw < 0x4000:
        p[1] = <uint8_t> (raw >> 7)
        return p + 2
    p[1] = <uint8_t> (raw >> 7 | 0x80)
    p[2] = <uint8_t> (raw >> 14)
    return p + 3


cdef inline uint8_t *put_blocks(uint8_t *p, const uint8_t *data, size_t size) noexcept nogil:
    """Bytes, in blocks while they are few: up to BLOCK - 1 more are read and written."""
    cdef size_t at = 0
    if size > FEW_BYTES:
        memcpy(p, data, size)
    else:
        while at < size:
            memcpy(p + at, data + at, BLOCK)
            at += BLOCK
    return p + size


cdef inline bint usual_at(const Strings *column, Py_ssize_t row, Field *field) noexcept nogil:
    """`string_at`, if there is one, not too long, with a block behind it that can be read."""
    if string_at(column, row, field) or not 0 <= field.size < USUAL_BYTES_MAX:
        return False
    return column.data + column.data_size - field.data >= field.size + BLOCK


@cython.final
cdef class ColumnReader:
    """Columns to encode from; every buffer is held, and long enough for the rows asked for."""

    cdef list held
    cdef Py_ssize_t held_size  # of the last one
    cdef const int32_t *rows  # which to take, if not all; of so many
    cdef Py_ssize_t of
    cdef const int64_t *timestamps
    cdef int64_t timestamp
    cdef Strings key
    cdef Strings value
    cdef const int32_t *lists
    cdef Py_ssize_t lists_first
    cdef Py_ssize_t header_rows
    cdef Strings header_key
    cdef Strings header_value

    def __init__(
        self, timestamps, key, value, headers, Py_ssize_t start, Py_ssize_t stop, rows,
        Py_ssize_t of,
    ):
        self.held = []
        if start < 0 or stop < start or of < 0:
            raise UsageError(f"rows {start} to {stop} are no range")
        if rows is not None:
            self.rows = <const int32_t *> self._hold(rows, stop * 4)
            self.of = stop = of
        if isinstance(timestamps, int):
            self.timestamp = timestamps
        else:
            self.timestamps = <const int64_t *> self._hold(timestamps, stop * 8)
        self._strings(&self.key, key, stop)
        self._strings(&self.value, value, stop)
        if headers is not None:
            self.lists_first = headers.first
            if headers.first < 0:
                raise UsageError("a column begins before its buffers")
            least = (headers.first + stop + 1) * 4
            self.lists = <const int32_t *> self._hold(headers.offsets, least)
            self.header_rows = self.lists[headers.first + stop]
            if self.header_rows < 0:
                raise UsageError("a column of headers has negative offsets")
            self._strings(&self.header_key, headers.keys, self.header_rows)
            self._strings(&self.header_value, headers.values, self.header_rows)

    cdef const uint8_t *_hold(self, data, Py_ssize_t least) except? NULL:
        """Keeps a buffer of at least `least` bytes open."""
        cdef Source source = Source(data)
        if source.view.len < least:
            raise UsageError(f"a buffer has {source.view.len} bytes where {least} are needed")
        self.held.append(source)
        self.held_size = source.view.len
        return <const uint8_t *> source.view.buf

    cdef int _strings(self, Strings *out, column, Py_ssize_t rows) except -1:
        cdef Py_ssize_t end
        memset(out, 0, sizeof(Strings))
        if column is None:
            return 0
        if column.first < 0:
            raise UsageError("a column begins before its buffers")
        end = column.first + rows
        out.present = True
        out.first = column.first
        if column.validity is not None:
            out.bits = <const uint8_t *> self._hold(column.validity, (end + 7) // 8)
        least = (end + 1) * 4 if rows else 0
        out.offsets = <const int32_t *> self._hold(column.offsets, least)
        out.data = self._hold(column.data, 0)
        out.data_size = self.held_size
        return 0

    cdef int add(self, Draft *draft, Py_ssize_t row) noexcept nogil:
        """Appends one row: 0 done, 1 full, 2 bad offsets, -1 no memory."""
        cdef Field key, value
        cdef int64_t count = 0
        cdef int fault
        if self.rows != NULL:
            row = self.rows[row]
            if row < 0 or row >= self.of:
                return 2
        fault = string_at(&self.key, row, &key) | string_at(&self.value, row, &value)
        if fault:
            return fault
        draft.scratch.size = 0
        if self.lists != NULL:
            count = self._scratch(draft, row)
            if count < 0:
                return <int> -count
        return add_record(
            draft, self.timestamps[row] if self.timestamps != NULL else self.timestamp,
            key, value, count,
        )

    cdef Py_ssize_t add_usual(self, Draft *draft, Py_ssize_t row, Py_ssize_t stop) noexcept nogil:
        """Appends rows as long as they are usual, and returns the first that is not.

        Usual is: not the first of its batch, no headers, a value, short numbers, and a block's room
        behind both its place and its source. `add` does the others and says what is wrong.
        """
        cdef Draft d = draft[0]
        cdef uint8_t *p
        cdef uint64_t since
        cdef uint32_t time, size
        cdef uint32_t key_size = 1  # null
        cdef Field key, value
        cdef Py_ssize_t at = row
        cdef size_t end = d.records.size, after, most
        cdef int64_t timestamp = self.timestamp
        if self.lists != NULL or d.count == 0 or d.alone or d.records.room < 2 * BLOCK:
            return row
        most = min(d.max_bytes, d.records.room - BLOCK)
        key.size = 0
        while row < stop and d.count < SHORT_END >> 1:
            at = row
            if self.rows != NULL:
                at = self.rows[row]
                if at < 0 or at >= self.of:
                    break
            if self.timestamps != NULL:
                timestamp = self.timestamps[at]
            since = <uint64_t> timestamp - <uint64_t> d.base_timestamp
            if since >= SHORT_END >> 1:
                break
            time = <uint32_t> since << 1
            if not usual_at(&self.value, at, &value):
                break
            if self.key.present:
                if not usual_at(&self.key, at, &key):
                    break
                key_size = <uint32_t> key.size << 1
            size = <uint32_t> (
                2 + short_width(time) + short_width(<uint32_t> d.count << 1)
                + short_width(key_size) + short_width(<uint32_t> value.size << 1)
                + <size_t> key.size + <size_t> value.size
            )
            after = end + short_width(size << 1) + size
            if after > most or after - end + HEADER > d.alone_bytes:
                break
            p = put_short(d.records.data + end, size << 1)
            p[0] = 0
            p = put_short(p + 1, time)
            p = put_short(p, <uint32_t> d.count << 1)
            p = put_short(p, key_size)
            if key.size:
                p = put_blocks(p, key.data, <size_t> key.size)
            p = put_short(p, <uint32_t> value.size << 1)
            p = put_blocks(p, value.data, <size_t> value.size)
            p[0] = 0
            if timestamp > d.max_timestamp:
                d.max_timestamp = timestamp
            end = after
            d.count += 1
            row += 1
            if end - d.summed >= SUMMED_BYTES and d.sums:
                d.sum = kh_crc_on(d.sum, d.records.data + d.summed, end - d.summed)
                d.summed = end
        d.records.size = end
        draft[0] = d
        return row

    cdef int64_t _scratch(self, Draft *draft, Py_ssize_t row) noexcept nogil:
        """Encodes the headers of one row; their number, or a fault negated."""
        cdef Field name, value
        cdef Py_ssize_t at = self.lists[self.lists_first + row]
        cdef Py_ssize_t end = self.lists[self.lists_first + row + 1]
        cdef int64_t count = end - at
        if at < 0 or end < at or end > self.header_rows:
            return -2
        while at < end:
            if string_at(&self.header_key, at, &name) or string_at(&self.header_value, at, &value):
                return -2
            if name.size < 0 or add_header(&draft.scratch, name, value):
                return -2
            at += 1
        return count
