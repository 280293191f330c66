# Records as Python sees them: light views of a page, which parse their fields when asked.

@cython.final
@cython.no_gc
cdef class Page:
    """What the records of one batch share, and the memory they point into."""

    cdef Source source
    cdef str topic
    cdef object timestamp_type
    cdef int32_t partition
    cdef int32_t leader_epoch


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Record:
    """One record; key, value and headers are read from its batch when they are asked for."""

    cdef Page page
    cdef Item item

    def __init__(
        self, str topic, int32_t partition, int64_t offset, *, int64_t timestamp=-1,
        key=None, value=None, headers=(), timestamp_type=CREATE_TIME, int32_t leader_epoch=-1,
    ):
        cdef Cursor cursor
        builder = BatchBuilder()
        builder.append(timestamp, key, value, headers)
        self.page = new_page(Source(builder.build()), topic, partition, leader_epoch)
        self.page.timestamp_type = TimestampType(timestamp_type)
        memset(&cursor, 0, sizeof(Cursor))
        cursor.p = <const uint8_t *> self.page.source.view.buf + HEADER
        cursor.end = <const uint8_t *> self.page.source.view.buf + self.page.source.view.len
        cursor.left = 1
        cursor.last_seen = -1
        next_item(&cursor, &self.item)
        self.item.offset = offset
        self.item.timestamp = timestamp

    @property
    @cython.nonecheck(True)
    def topic(self):
        return self.page.topic

    @property
    @cython.nonecheck(True)
    def partition(self):
        return self.page.partition

    @property
    def offset(self):
        return self.item.offset

    @property
    def timestamp(self):
        return self.item.timestamp

    @property
    @cython.nonecheck(True)
    def timestamp_type(self):
        return self.page.timestamp_type

    @property
    @cython.nonecheck(True)
    def leader_epoch(self):
        return self.page.leader_epoch

    @property
    def size(self):
        return max(self.item.key_size, 0) + max(self.item.value_size, 0)

    @property
    def key(self):
        if self.item.key_size < 0:
            return None
        return PyBytes_FromStringAndSize(<const char *> self.item.key, self.item.key_size)

    @property
    def value(self):
        if self.item.value_size < 0:
            return None
        return PyBytes_FromStringAndSize(<const char *> self.item.value, self.item.value_size)

    @property
    def headers(self):
        if self.item.header_count == 0:
            return ()
        return tuple(read_headers(&self.item))

    def detach(self):
        """The same record with memory of its own, so that its batch may be freed."""
        return rebuild_record(*self._fields())

    @cython.nonecheck(True)
    def _fields(self):
        return (
            self.page.topic, self.page.partition, self.item.offset, self.item.timestamp,
            self.key, self.value, self.headers, int(self.page.timestamp_type),
            self.page.leader_epoch,
        )

    def __reduce__(self):
        return rebuild_record, self._fields()

    @cython.nonecheck(True)
    def __repr__(self):
        return (
            f"<Record {self.page.topic}-{self.page.partition} offset {self.item.offset}, "
            f"key {self.key!r}, {max(self.item.value_size, 0)} bytes>"
        )


def rebuild_record(
    topic, partition, offset, timestamp, key, value, headers, timestamp_type, leader_epoch
):
    """A record from its fields; what a pickled one is made from."""
    return Record(
        topic, partition, offset, timestamp=timestamp, key=key, value=value, headers=headers,
        timestamp_type=timestamp_type, leader_epoch=leader_epoch,
    )


cdef Page new_page(Source source, str topic, int32_t partition, int32_t leader_epoch):
    cdef Page page = Page.__new__(Page)
    page.source = source
    page.topic = topic
    page.partition = partition
    page.leader_epoch = leader_epoch
    return page


cdef list read_headers(Item *item):
    """Headers that `next_item` has found to be sound."""
    cdef const uint8_t *p = item.headers
    cdef const uint8_t *end = p + 0x7FFFFFFF
    cdef int32_t size = 0, count = item.header_count
    out = []
    while count > 0:
        p = get_varint(p, end, &size)
        name = PyUnicode_DecodeUTF8(<const char *> p, size, "replace")
        p += size
        p = get_varint(p, end, &size)
        if size < 0:
            out.append((name, None))
        else:
            out.append((name, PyBytes_FromStringAndSize(<const char *> p, size)))
            p += size
        count -= 1
    return out
