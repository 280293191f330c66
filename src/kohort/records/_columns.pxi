# Columns: one piece of Arrow-layout buffers, filled from batches without touching a Python object.

cdef enum:
    WANT_OFFSET = 1
    WANT_TIMESTAMP = 2
    WANT_TIMESTAMP_TYPE = 4
    WANT_KEY = 8
    WANT_VALUE = 16
    WANT_HEADERS = 32

cdef struct Binary:
    Vec offsets  # int32
    Vec data
    Vec bits
    Py_ssize_t rows
    Py_ssize_t nulls

cdef struct Piece:
    int want
    Py_ssize_t rows
    Py_ssize_t max_rows
    Py_ssize_t max_bytes
    Py_ssize_t raw  # record bytes read so far
    Py_ssize_t room  # rows there is room for
    int64_t first_offset
    int64_t last_offset
    Vec offset
    Vec timestamp
    Vec timestamp_type
    Binary key
    Binary value
    Vec lists  # int32, into the headers
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
        memset(column.bits.data + before, 0, column.bits.room - before)
    if column.rows == 0:
        (<int32_t *> column.offsets.data)[0] = 0
    return 0


cdef inline int put_binary(Binary *column, const uint8_t *data, int32_t size) noexcept nogil:
    """One more row; there is room for it in offsets and bits."""
    cdef Py_ssize_t row = column.rows
    if size > 0:
        if column.data.room - column.data.size < <size_t> size:
            if column.data.size + <size_t> size > 0x7FFFFFFF:
                return -1
            if reserve(&column.data, column.data.size + <size_t> size):
                return -1
        memcpy(column.data.data + column.data.size, data, size)
        column.data.size += size
    if size >= 0:
        column.bits.data[row >> 3] |= <uint8_t> (1 << (row & 7))
    else:
        column.nulls += 1
    column.rows = row + 1
    (<int32_t *> column.offsets.data)[row + 1] = <int32_t> column.data.size
    return 0


cdef int put_headers(Piece *o, const Item *item) noexcept nogil:
    """The headers of one record, which `next_item` has found to be sound."""
    cdef const uint8_t *p = item.headers
    cdef const uint8_t *end = p + 0x7FFFFFFF
    cdef int32_t size = 0, count = item.header_count
    if count and (
        reserve_rows(&o.header_key, o.header_key.rows + count)
        or reserve_rows(&o.header_value, o.header_value.rows + count)
    ):
        return -1
    while count > 0:
        p = get_varint(p, end, &size)
        if put_binary(&o.header_key, p, size):
            return -1
        p += size
        p = get_varint(p, end, &size)
        if put_binary(&o.header_value, p, size):
            return -1
        if size > 0:
            p += size
        count -= 1
    (<int32_t *> o.lists.data)[o.rows + 1] = <int32_t> o.header_key.rows
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
    memset(column.bits.data, 0, column.bits.room)
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


cdef int take_columns(Cursor *c, Piece *o) noexcept nogil:
    """Fills the piece from the open batch until one of them ends."""
    cdef Item item
    cdef int fault, want = o.want
    cdef const uint8_t *before
    cdef Py_ssize_t wanted = o.max_rows - o.rows
    if wanted > c.left:
        wanted = c.left
    if make_room(o, o.rows + wanted):
        return NO_MEMORY
    while c.left > 0:
        if o.rows >= o.max_rows or o.raw >= o.max_bytes:
            return FULL
        before = c.p
        fault = next_item(c, &item)
        if fault:
            return fault
        if item.offset < c.position:
            continue
        if item.offset >= c.end_offset:
            return AT_END
        o.raw += c.p - before
        if want & WANT_KEY and put_binary(&o.key, item.key, item.key_size):
            return NO_MEMORY
        if want & WANT_VALUE and put_binary(&o.value, item.value, item.value_size):
            return NO_MEMORY
        if want & WANT_OFFSET:
            (<int64_t *> o.offset.data)[o.rows] = item.offset
        if want & WANT_TIMESTAMP:
            (<int64_t *> o.timestamp.data)[o.rows] = item.timestamp
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


cdef object binary_of(Binary *column):
    column.offsets.size = (column.rows + 1) * 4
    column.bits.size = (column.rows + 7) // 8
    if column.offsets.data == NULL and reserve_rows(column, 0):
        raise MemoryError
    validity = take(&column.bits) if column.nulls else None
    return BinaryColumn(validity, take(&column.offsets), take(&column.data), column.nulls)


cdef object columns_of(str topic, int32_t partition, Piece *o):
    """Hands the buffers of the piece over to a `Columns`."""
    o.offset.size = o.timestamp.size = <size_t> o.rows * 8
    o.timestamp_type.size = <size_t> o.rows
    o.lists.size = <size_t> (o.rows + 1) * 4
    headers = None
    if o.want & WANT_HEADERS:
        keys = binary_of(&o.header_key)
        headers = HeaderColumn(take(&o.lists), sound_keys(keys), binary_of(&o.header_value))
    return Columns(
        topic, partition, o.rows, o.first_offset, o.last_offset,
        take(&o.offset) if o.want & WANT_OFFSET else None,
        take(&o.timestamp) if o.want & WANT_TIMESTAMP else None,
        take(&o.timestamp_type) if o.want & WANT_TIMESTAMP_TYPE else None,
        binary_of(&o.key) if o.want & WANT_KEY else None,
        binary_of(&o.value) if o.want & WANT_VALUE else None,
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
