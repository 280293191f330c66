# Columns: one piece of Arrow-layout buffers, filled from batches without touching a Python object.

cdef enum:
    WANT_OFFSET = 1
    WANT_TIMESTAMP = 2
    WANT_TIMESTAMP_TYPE = 4
    WANT_KEY = 8
    WANT_VALUE = 16
    WANT_HEADERS = 32

cdef struct Piece:
    int want
    Py_ssize_t rows
    Py_ssize_t max_rows
    Py_ssize_t max_bytes
    Py_ssize_t raw  # record bytes read so far
    const uint8_t *ahead_end
    Py_ssize_t room  # rows there is room for
    int64_t first_offset
    int64_t last_offset
    Vec offset
    Vec timestamp
    Vec timestamp_type
    Binary key
    Binary value
    Vec lists  # int32, into the headers
    Py_ssize_t header_rows
    Binary header_key
    Binary header_value


cdef int wanted_columns(object columns) except -1:
    cdef int want = 0
    for name in columns:
        if name == "offset":
            want |= WANT_OFFSET
        elif name == "timestamp":
            want |= WANT_TIMESTAMP
        elif name == "timestamp_type":
            want |= WANT_TIMESTAMP_TYPE
        elif name == "key":
            want |= WANT_KEY
        elif name == "value":
            want |= WANT_VALUE
        elif name == "headers":
            want |= WANT_HEADERS
        elif name not in ("topic", "partition"):
            raise UsageError(f"there is no column {name!r}; choose from COLUMN_NAMES")
    return want


cdef inline int reserve_rows(Binary *column, Py_ssize_t rows) noexcept nogil:
    cdef size_t before = column.bits.room
    if reserve(&column.offsets, (rows + 1) * 4) or reserve(&column.bits, (rows + 7) // 8):
        return -1
    if column.bits.room > before:
        memset(column.bits.data + before, 0xFF, column.bits.room - before)
    (<int32_t *> column.offsets.data)[0] = 0
    return 0


cdef int put_headers(Piece *o, const Item *item) noexcept nogil:
    """The headers of one record, which `next_item` has found to be sound."""
    cdef const uint8_t *p = item.headers
    cdef const uint8_t *end = p + 0x7FFFFFFF
    cdef Py_ssize_t row = o.header_rows
    cdef int32_t size = 0, count = item.header_count
    if count and (
        reserve_rows(&o.header_key, row + count) or reserve_rows(&o.header_value, row + count)
    ):
        return -1
    while count > 0:
        p = get_varint(p, end, &size)
        if put_row(&o.header_key, row, p, size, size):
            return -1
        p += size
        p = get_varint(p, end, &size)
        if put_row(&o.header_value, row, p, size, size):
            return -1
        if size > 0:
            p += size
        row += 1
        count -= 1
    o.header_rows = row
    (<int32_t *> o.lists.data)[o.rows + 1] = <int32_t> row
    return 0


cdef int draw_room(Piece *o, Py_ssize_t rows, size_t raw) except -1:
    """First buffers, for about `rows` rows of `raw` bytes; what is too small grows later."""
    o.room = rows
    if o.want & WANT_OFFSET:
        draw(&o.offset, <size_t> rows * 8)
    if o.want & WANT_TIMESTAMP:
        draw(&o.timestamp, <size_t> rows * 8)
    if o.want & WANT_TIMESTAMP_TYPE:
        draw(&o.timestamp_type, <size_t> rows)
    if o.want & WANT_KEY:
        draw_binary(&o.key, rows, raw // 8)
    if o.want & WANT_VALUE:
        draw_binary(&o.value, rows, raw)
    if o.want & WANT_HEADERS:
        draw(&o.lists, <size_t> (rows + 1) * 4)
        (<int32_t *> o.lists.data)[0] = 0
    return 0


cdef int draw_binary(Binary *column, Py_ssize_t rows, size_t raw) except -1:
    draw(&column.offsets, <size_t> (rows + 1) * 4)
    (<int32_t *> column.offsets.data)[0] = 0
    draw(&column.bits, <size_t> (rows + 7) // 8)
    memset(column.bits.data, 0xFF, column.bits.room)
    draw(&column.data, raw)
    return 0


cdef int make_room(Piece *o, Py_ssize_t rows) noexcept nogil:
    """Room for `rows` rows in all."""
    if rows <= o.room:
        return 0
    if rows < o.room * 2:
        rows = o.room * 2 if o.room * 2 < o.max_rows else o.max_rows
    o.room = rows
    if o.want & WANT_OFFSET and reserve(&o.offset, <size_t> rows * 8):
        return -1
    if o.want & WANT_TIMESTAMP and reserve(&o.timestamp, <size_t> rows * 8):
        return -1
    if o.want & WANT_TIMESTAMP_TYPE and reserve(&o.timestamp_type, <size_t> rows):
        return -1
    if o.want & WANT_KEY and reserve_rows(&o.key, rows):
        return -1
    if o.want & WANT_VALUE and reserve_rows(&o.value, rows):
        return -1
    if o.want & WANT_HEADERS and reserve(&o.lists, <size_t> (rows + 1) * 4):
        return -1
    return 0


cdef int take_columns(Cursor *cursor, Piece *o) noexcept nogil:
    """Fills the piece from the open batch until one of them ends."""
    cdef Cursor c = cursor[0]  # a copy, so that it may live in registers
    cdef Py_ssize_t wanted = o.max_rows - o.rows
    cdef int status
    if wanted > c.left:
        wanted = c.left
    if make_room(o, o.rows + wanted):
        return NO_MEMORY
    status = run_columns(&c, o)
    cursor[0] = c
    return status


cdef Py_ssize_t take_usual(Cursor *c, Piece *o) noexcept nogil:
    """Reads on over records of the usual shape, and says how many there were."""
    cdef Table t
    cdef Py_ssize_t before = o.rows
    t.keys = &o.key if o.want & WANT_KEY else NULL
    t.values = &o.value if o.want & WANT_VALUE else NULL
    t.offsets = <int64_t *> o.offset.data
    t.times = <int64_t *> o.timestamp.data
    t.types = o.timestamp_type.data
    t.lists = <int32_t *> o.lists.data
    t.header_rows = <int32_t> o.header_rows
    t.rows, t.max_rows = o.rows, o.max_rows
    t.raw, t.max_raw = o.raw, o.max_bytes
    t.ahead_end = o.ahead_end
    kh_take_usual(c, &t)
    if t.rows > o.rows:
        o.last_offset = c.position - 1
    o.rows, o.raw = t.rows, t.raw
    return o.rows - before


cdef inline int run_columns(Cursor *c, Piece *o) noexcept nogil:
    cdef Item item
    cdef int want = o.want
    cdef int64_t *offsets = <int64_t *> o.offset.data
    cdef int64_t *timestamps = <int64_t *> o.timestamp.data
    cdef const uint8_t *before
    cdef int status, tries = 8  # a batch of other records is not to pay for looking
    while c.left > 0:
        if o.rows > 0 and tries > 0:  # the first row is checked below
            if take_usual(c, o) == 0:
                tries -= 1
            if c.left == 0:
                break
        if o.rows >= o.max_rows or o.raw >= o.max_bytes:
            return FULL
        before = c.p
        status = next_item(c, &item)
        if status:
            return status
        if item.offset < c.position:
            continue
        if item.offset >= c.end_offset:
            return AT_END
        o.raw += c.p - before
        if want & WANT_KEY and put_row(
                &o.key, o.rows, item.key, item.key_size, c.end - item.key):
            return NO_MEMORY
        if want & WANT_VALUE and put_row(
                &o.value, o.rows, item.value, item.value_size, c.end - item.value):
            return NO_MEMORY
        if want & WANT_OFFSET:
            offsets[o.rows] = item.offset
        if want & WANT_TIMESTAMP:
            timestamps[o.rows] = item.timestamp
        if want & WANT_TIMESTAMP_TYPE:
            o.timestamp_type.data[o.rows] = <uint8_t> c.append_time
        if want & WANT_HEADERS and put_headers(o, &item):
            return NO_MEMORY
        if o.rows == 0:
            o.first_offset = item.offset
        o.rows += 1
        o.last_offset = item.offset
        c.position = item.offset + 1
    return FINE if c.p == c.end else BAD_END


cdef bint next_plain(
    const uint8_t *data, Py_ssize_t end, Py_ssize_t *at, Py_ssize_t *size, Cursor *c, Piece *o,
    bint check_crc,
) noexcept nogil:
    """Moves from the batch at `at`, read to its end, to the next one, if that is sound and plain.

    Else False, and nothing has moved: `Chunk` finds the cause.
    """
    cdef Py_ssize_t there = at[0] + size[0]
    cdef const uint8_t *batch = data + there
    cdef int64_t base, after = c.base_offset + c.last_delta + 1
    cdef int32_t length, count, last_delta
    cdef int16_t attributes
    if o.raw >= o.max_bytes or o.rows >= o.max_rows or end - there < HEADER:
        return False
    base = be64(batch)
    length = <int32_t> be32(batch + 8)
    attributes = be16(batch + 21)
    last_delta = <int32_t> be32(batch + 23)
    count = <int32_t> be32(batch + 57)
    if batch[16] != 2 or length < HEADER - PREFIX or length > end - there - PREFIX:
        return False
    if attributes & 0x27 or base < after or base >= c.end_offset:
        return False
    if last_delta < 0 or base > MOST_OFFSET - last_delta or count > <int64_t> last_delta + 1:
        return False
    if count < 1 or <int64_t> count * MIN_RECORD > length - (HEADER - PREFIX):
        return False
    if base + last_delta < c.position:
        return False
    if check_crc and kh_crc32c(0, batch + CRC_FROM, length + PREFIX - CRC_FROM) != be32(batch + 17):
        return False
    at[0] = there
    size[0] = length + PREFIX
    c.position = after if after > c.position else c.position
    c.base_offset = base
    c.append_time = attributes & 0x08 != 0
    c.last_delta = last_delta
    c.base_timestamp = be64(batch + 27)
    c.max_timestamp = be64(batch + 35)
    c.p = batch + HEADER
    c.end = batch + size[0]
    c.left = count
    c.last_seen = -1
    return True


cdef object binary_of(Binary *column, Py_ssize_t rows):
    if column.offsets.data == NULL and reserve_rows(column, 0):
        raise MemoryError
    column.offsets.size = <size_t> (rows + 1) * 4
    column.bits.size = <size_t> (rows + 7) // 8
    if rows & 7:
        column.bits.data[rows >> 3] &= <uint8_t> ((1 << (rows & 7)) - 1)
    validity = take(&column.bits) if column.nulls else None
    return BinaryColumn(validity, take(&column.offsets), take(&column.data), column.nulls)


cdef object columns_of(str topic, int32_t partition, Piece *o):
    """Hands the buffers of the piece over to a `Columns`."""
    o.offset.size = o.timestamp.size = <size_t> o.rows * 8
    o.timestamp_type.size = <size_t> o.rows
    o.lists.size = <size_t> (o.rows + 1) * 4
    headers = None
    if o.want & WANT_HEADERS:
        keys = sound_keys(binary_of(&o.header_key, o.header_rows))
        headers = HeaderColumn(take(&o.lists), keys, binary_of(&o.header_value, o.header_rows))
    return Columns(
        topic, partition, o.rows, o.first_offset, o.last_offset,
        take(&o.offset) if o.want & WANT_OFFSET else None,
        take(&o.timestamp) if o.want & WANT_TIMESTAMP else None,
        take(&o.timestamp_type) if o.want & WANT_TIMESTAMP_TYPE else None,
        binary_of(&o.key, o.rows) if o.want & WANT_KEY else None,
        binary_of(&o.value, o.rows) if o.want & WANT_VALUE else None,
        headers,
    )


cdef void free_binary(Binary *column) noexcept:
    release(&column.offsets)
    release(&column.data)
    release(&column.bits)


cdef void free_piece(Piece *o) noexcept:
    release(&o.offset)
    release(&o.timestamp)
    release(&o.timestamp_type)
    release(&o.lists)
    free_binary(&o.key)
    free_binary(&o.value)
    free_binary(&o.header_key)
    free_binary(&o.header_value)
