# The way in: one cursor over a fetched record set, to records or to columns.

cdef enum:  # what may end a run over a batch, besides a record's fault
    FULL = 100
    AT_END = 101
    NO_MEMORY = 102


include "_records.pxi"
include "_columns.pxi"


def end_of_set(data):
    """Where reading continues behind the last whole batch, by headers alone; -1: unknown."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return end_of_batches(<const uint8_t *> view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef int64_t end_of_batches(const uint8_t *batch, Py_ssize_t left) noexcept nogil:
    cdef int64_t base, after = -1
    cdef int32_t length, last_delta
    while left >= PREFIX + 5:
        base = be64(batch)
        length = <int32_t> be32(batch + 8)
        if batch[16] != 2 or length < HEADER - PREFIX or base < 0:
            return -1
        if length > left - PREFIX:
            break
        last_delta = <int32_t> be32(batch + 23)
        if last_delta < 0 or base < after or base > MOST_OFFSET - last_delta:
            return -1
        after = base + last_delta + 1
        batch += length + PREFIX
        left -= length + PREFIX
    return after


def whole_batches(data):
    """How many bytes the whole batches at the beginning take, by headers alone."""
    cdef Py_buffer view
    cdef const uint8_t *start
    cdef Py_ssize_t at = 0
    cdef int32_t length
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    start = <const uint8_t *> view.buf
    while view.len - at >= PREFIX + 5:
        length = <int32_t> be32(start + at + 8)
        if start[at + 16] != 2 or length < HEADER - PREFIX or length > view.len - at - PREFIX:
            break
        if be64(start + at) < 0:
            break
        at += length + PREFIX
    PyBuffer_Release(&view)
    return at


@cython.final
cdef class Chunk:
    """A cursor over one partition's fetched record set. The contract is `pure.Chunk`'s."""

    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int32_t leader_epoch
    cdef Source source
    cdef object view
    cdef Page page  # of the open batch
    cdef Cursor cursor
    cdef const uint8_t *data
    cdef Py_ssize_t size
    cdef Py_ssize_t at  # where the present batch starts
    cdef Py_ssize_t batch_size
    cdef Py_ssize_t unpacked  # bytes of the open batch, decompressed
    cdef bint ready  # the batch at `at` has been checked and holds records for the caller
    cdef bint opened  # and its records can be read
    cdef bint done
    cdef bint busy
    cdef bint check_crc
    cdef list aborted  # (first offset, producer id), by offset, those not yet reached
    cdef set aborting  # producer ids whose records are being dropped
    cdef Py_ssize_t max_decompressed

    def __init__(
        self, str topic, int32_t partition, data, int64_t fetch_offset, *,
        end_offset=None, aborted=None, bint check_crc=True,
        Py_ssize_t max_decompressed=DEFAULT_MAX_DECOMPRESSED_BYTES,
    ):
        self.topic = topic
        self.partition = partition
        self.leader_epoch = -1
        self.source = Source(data)
        self.view = data
        self.data = <const uint8_t *> self.source.view.buf
        self.size = self.source.view.len
        self.check_crc = check_crc
        self.max_decompressed = max_decompressed
        self.cursor.position = fetch_offset
        self.cursor.end_offset = MAX_OFFSET if end_offset is None else end_offset
        self.aborted = sorted([(first, pid) for pid, first in aborted]) if aborted else []
        self.aborting = set()
        self._settle()

    @property
    def position(self):
        return self.cursor.position

    @property
    def exhausted(self):
        return self.done

    @property
    def bytes(self):
        return self.size + self.unpacked

    def next_records(self, Py_ssize_t max_records):
        cdef list out = []
        cdef int status
        cdef Py_ssize_t before
        self._enter()
        try:
            while len(out) < max_records and self._can_open(len(out) > 0):
                before = len(out)
                status = self._take_records(out, max_records)
                if len(out) > before:
                    self.leader_epoch = self.page.leader_epoch
                if self._finish(status, len(out) > 0):
                    break
            self._settle()
        finally:
            self.busy = False
        return out

    def next_columns(
        self, Py_ssize_t max_rows=DEFAULT_MAX_ROWS, columns=DEFAULT_COLUMNS, *,
        Py_ssize_t max_bytes=DEFAULT_PIECE_BYTES,
    ):
        cdef Piece piece
        cdef int status
        cdef Py_ssize_t before
        memset(&piece, 0, sizeof(Piece))
        piece.want = wanted_columns(columns)
        if max_rows < 1 or max_bytes < 1:
            raise UsageError(
                f"a piece of {max_rows} rows and {max_bytes} bytes; ask for at least one of each"
            )
        max_bytes = min(max_bytes, MOST_PIECE_BYTES)
        piece.max_rows = max_rows
        piece.max_bytes = max_bytes
        self._enter()
        try:
            while (
                piece.rows < max_rows and piece.raw < max_bytes and self._can_open(piece.rows > 0)
            ):
                if piece.room == 0:
                    self._draw_room(&piece)
                before = piece.rows
                status = self._run_columns(&piece)
                if status == NO_MEMORY:
                    raise MemoryError
                if piece.rows > before:
                    self.leader_epoch = self.page.leader_epoch
                if self._finish(status, piece.rows > 0):
                    break
            self._settle()
            if piece.rows == 0:
                return None
            return columns_of(self.topic, self.partition, &piece)
        finally:
            self.busy = False
            free_piece(&piece)

    cdef int _run_columns(self, Piece *piece) except -1:
        """Reads the open batch and, in the same breath, the plain ones behind it.

        What is not plain (compressed, control, perhaps aborted, damaged) is left to `_open`.
        """
        cdef int status
        cdef Py_ssize_t at = self.at, size = self.batch_size
        cdef Py_ssize_t end = self.size
        if self.unpacked or self.aborted or self.aborting:
            end = 0  # go no further than the open batch
        piece.ahead_end = self.data + end if end else self.cursor.end
        if self.cursor.end - self.cursor.p >= UNLOCK_BYTES or end - at >= UNLOCK_BYTES:
            with nogil:
                status = take_columns(&self.cursor, piece)
                while status == FINE and next_plain(
                        self.data, end, &at, &size, &self.cursor, piece, self.check_crc):
                    status = take_columns(&self.cursor, piece)
        else:
            status = take_columns(&self.cursor, piece)
        if at != self.at:
            self.at, self.batch_size = at, size
            self._new_page(self.source)
        return status

    def skip_batch(self):
        cdef int64_t after
        self._enter()
        try:
            self.cursor.position = self._next_after()
            self.batch_size = self._whole()
            if self.at + self.batch_size < self.size and self._witness(&after) == False:
                self.batch_size = 0  # its length is not to be believed either
            self._next_batch()
            self._settle()
        finally:
            self.busy = False

    cdef int _enter(self) except -1:
        if self.busy:
            raise ConcurrentUseError(
                f"two threads read the chunk of {self.topic}-{self.partition} at once; give each "
                "chunk to one thread at a time"
            )
        self.busy = True
        return 0

    cdef int _draw_room(self, Piece *piece) except -1:
        """Buffers for what the piece will hold if the rest of the set is like the open batch."""
        cdef Py_ssize_t batch = max(self.cursor.end - self.cursor.p, 1)
        cdef Py_ssize_t raw = batch + (self.size - self.at - self.batch_size) // 64 * 64
        cdef Py_ssize_t rows
        if self.unpacked:
            raw = batch * ((self.size - self.at) // self.batch_size + 1)
        if raw > piece.max_bytes:
            raw = piece.max_bytes
        rows = <Py_ssize_t> (<double> raw / batch * self.cursor.left * 1.05) + 8
        if rows > piece.max_rows:
            rows = piece.max_rows
        return draw_room(piece, rows, <size_t> raw)

    cdef int _take_records(self, list out, Py_ssize_t max_records) except -1:
        """Appends records of the open batch to `out`."""
        cdef Record record
        cdef Cursor *c = &self.cursor
        cdef Page page = self.page
        cdef int fault
        cdef Py_ssize_t room = max_records - len(out)
        while c.left > 0:
            if room == 0:
                return FULL
            record = Record.__new__(Record)
            fault = next_item(c, &record.item)
            if fault:
                return fault
            if record.item.offset < c.position:
                continue
            if record.item.offset >= c.end_offset:
                return AT_END
            c.position = record.item.offset + 1
            record.page = page
            out.append(record)
            room -= 1
        return FINE if c.p == c.end else BAD_END

    cdef bint _can_open(self, bint have_some) except -1:
        """Opens the next batch with records; an error waits while there is something to give."""
        if not have_some:
            return self._open()
        try:
            return self._open()
        except CorruptRecordError:
            return False

    cdef bint _finish(self, int status, bint have_some) except -1:
        """What a run over the open batch came to; True when the call must end with it."""
        if status == FULL:
            return True
        if status == AT_END:
            self._stop_at_end()
            return True
        if status != FINE:
            if have_some:
                return True
            raise self._corrupt(RECORD_FAULTS[status])
        self._pass_batch()
        return False

    cdef void _stop_at_end(self):
        self.cursor.position = max(self.cursor.position, self.cursor.end_offset)
        self._close()
        self.done = True

    cdef void _pass_batch(self):
        """Leaves the present batch behind: its records were returned or are skipped."""
        cdef int64_t after = self.cursor.base_offset + self.cursor.last_delta + 1
        self.cursor.position = max(self.cursor.position, after)
        self.leader_epoch = <int32_t> be32(self.data + self.at + 12)
        self._next_batch()

    cdef void _next_batch(self):
        self._close()
        if self.batch_size <= 0:
            self.done = True
        else:
            self.at += self.batch_size
            self.batch_size = 0

    cdef void _close(self):
        self.ready = self.opened = False
        self.page = None
        self.unpacked = 0

    cdef bint _open(self) except -1:
        """Makes the next batch with records readable; False when there is none."""
        cdef const uint8_t *batch = self.data + self.at
        cdef Source source = self.source
        cdef int codec
        if self.opened:
            return True
        if not self._advance():
            return False
        batch = self.data + self.at
        codec = be16(batch + 21) & 7
        self.cursor.p = batch + HEADER
        self.cursor.end = batch + self.batch_size
        if codec:
            source = Source(self._decompressed(codec))
            self.cursor.p = <const uint8_t *> source.view.buf
            self.cursor.end = self.cursor.p + source.view.len
            self.unpacked = source.view.len
        self.cursor.left = <int32_t> be32(batch + 57)
        if <int64_t> self.cursor.left * MIN_RECORD > self.cursor.end - self.cursor.p:
            raise self._corrupt(
                f"{self.cursor.left} records cannot stand in {self.cursor.end - self.cursor.p} "
                "bytes"
            )
        self.cursor.last_seen = -1
        self._new_page(source)
        self.opened = True
        return True

    cdef void _new_page(self, Source source):
        """The page of the open batch, whose records are in `source`."""
        cdef int32_t epoch = <int32_t> be32(self.data + self.at + 12)
        self.page = new_page(source, self.topic, self.partition, epoch)
        self.page.timestamp_type = LOG_APPEND_TIME if self.cursor.append_time else CREATE_TIME

    cdef object _decompressed(self, int codec):
        part = memoryview(self.view)[self.at + HEADER : self.at + self.batch_size]
        try:
            return decompress(codec, part, self.max_decompressed, allocate)
        except CorruptRecordError as error:
            raise self._corrupt(str(error)) from None

    cdef bint _advance(self) except -1:
        """Moves to the next batch that holds records for the caller, and checks it."""
        cdef int16_t attributes
        cdef int64_t last
        while not self.ready:
            if self.done or not self._read_header():
                return False
            attributes = be16(self.data + self.at + 21)
            last = self.cursor.base_offset + self.cursor.last_delta
            if self.cursor.base_offset >= self.cursor.end_offset:
                self._stop_at_end()
                return False
            if self._is_aborted(attributes, last) or attributes & 0x20:
                self._pass_batch()
            elif last < self.cursor.position or be32(self.data + self.at + 57) == 0:
                self._pass_batch()
            else:
                self.ready = True
        return True

    cdef bint _is_aborted(self, int16_t attributes, int64_t last) except -1:
        """Follows the aborted transactions up to this batch (KIP-98, read_committed)."""
        cdef int64_t producer
        if not self.aborted and not self.aborting:
            return False
        while self.aborted and self.aborted[0][0] <= last:
            self.aborting.add(self.aborted.pop(0)[1])
        if not self.aborting or not attributes & 0x10:
            return False
        producer = be64(self.data + self.at + 43)
        if attributes & 0x20:
            if self._is_abort_marker():
                self.aborting.discard(producer)
            return False
        return producer in self.aborting

    cdef bint _is_abort_marker(self) except -1:
        """A control record whose key says type 0: version int16, type int16.

        Of a batch that compaction has emptied nothing is left but its header: it ends nothing.
        """
        cdef Cursor cursor = self.cursor
        cdef Item item
        if be32(self.data + self.at + 57) == 0:
            return False
        cursor.p = self.data + self.at + HEADER
        cursor.end = self.data + self.at + self.batch_size
        cursor.last_seen = -1
        if next_item(&cursor, &item) != FINE or item.key_size < 4:
            raise self._corrupt("a control batch without a marker")
        return be16(item.key + 2) == 0

    cdef bint _read_header(self) except -1:
        """Reads and checks the header of the batch at `at`; False at the end."""
        cdef const uint8_t *batch = self.data + self.at
        cdef Py_ssize_t left = self.size - self.at
        cdef int32_t length
        cdef uint32_t crc
        self.batch_size = 0
        if left < PREFIX + 5:
            return self._ends()
        self.cursor.base_offset = be64(batch)
        length = <int32_t> be32(batch + 8)
        if length < HEADER - PREFIX or self.cursor.base_offset < 0:
            raise self._corrupt(f"its length is {length}")
        if batch[16] != 2:
            raise self._corrupt(
                f"message format {<int8_t> batch[16]}; only format 2 (Kafka 0.11 and later) can "
                "be read"
            )
        if length > left - PREFIX:
            return self._ends()
        self.batch_size = length + PREFIX
        if self.check_crc:
            if self.batch_size >= UNLOCK_BYTES:
                with nogil:
                    crc = kh_crc32c(0, batch + CRC_FROM, self.batch_size - CRC_FROM)
            else:
                crc = kh_crc32c(0, batch + CRC_FROM, self.batch_size - CRC_FROM)
            if crc != be32(batch + 17):
                raise self._corrupt("its CRC does not match")
        self._read_fields(batch)
        return True

    cdef int _read_fields(self, const uint8_t *batch) except -1:
        """The fields behind the CRC."""
        cdef int16_t attributes = be16(batch + 21)
        cdef int32_t count = <int32_t> be32(batch + 57)
        self.cursor.append_time = attributes & 0x08 != 0
        self.cursor.last_delta = <int32_t> be32(batch + 23)
        self.cursor.base_timestamp = be64(batch + 27)
        self.cursor.max_timestamp = be64(batch + 35)
        if attributes & 7 > 4:
            raise self._corrupt(f"unknown compression codec {attributes & 7}")
        if (
            self.cursor.last_delta < 0
            or self.cursor.base_offset > <int64_t> 0x7FFFFFFFFFFFFFFE - self.cursor.last_delta
        ):
            raise self._corrupt(f"its last offset delta is {self.cursor.last_delta}")
        if count < 0 or count > <int64_t> self.cursor.last_delta + 1:
            raise self._corrupt(f"its record count is {count}")
        return 0

    cdef bint _ends(self) except -1:
        """The set ends here, which inside its very first batch is damage (Fetch v3, KIP-74)."""
        if self.at == 0 and self.size > 0:
            raise self._corrupt("it is longer than the whole record set")
        self.done = True
        return False

    cdef int _settle(self) except -1:
        """Passes what yields nothing, so that position and exhausted are true at once.

        Batches with records are left alone: their CRC is checked when they are read, while they
        are in the cache. Damage is left too, for the next call to raise.
        """
        cdef const uint8_t *batch
        cdef int16_t attributes
        cdef bint idle
        while not self.ready and not self.done:
            if self.size - self.at >= HEADER:
                batch = self.data + self.at
                attributes = be16(batch + 21)
                idle = be64(batch) >= self.cursor.end_offset or be32(batch + 57) == 0
                idle = idle or attributes & 0x20 or (attributes & 0x10 and (
                    len(self.aborted) > 0 or len(self.aborting) > 0))
                if not idle and <Py_ssize_t> be32(batch + 8) <= self.size - self.at - PREFIX:
                    break
            try:
                self._advance()
            except CorruptRecordError:
                break
        return 0

    cdef Py_ssize_t _whole(self):
        """The size of the present batch by its length, 0 when that cannot be."""
        cdef Py_ssize_t left = self.size - self.at
        cdef int32_t length
        if left < HEADER:
            return 0
        length = <int32_t> be32(self.data + self.at + 8)
        return length + PREFIX if HEADER - PREFIX <= length <= left - PREFIX else 0

    cdef bint _witness(self, int64_t *after):
        """Whether another batch begins where the present one ends, and its base offset."""
        cdef Py_ssize_t size = self._whole()
        cdef const uint8_t *batch = self.data + self.at + size
        if size == 0 or self.size - self.at - size < PREFIX + 5 or batch[16] != 2:
            return False
        if <int32_t> be32(batch + 8) < HEADER - PREFIX:
            return False
        after[0] = be64(batch)
        return True

    cdef int64_t _next_after(self):
        """The offset after the present batch, as far as it can be trusted when it is damaged.

        The next batch's base offset is the best witness; else the batch's own last offset, if two
        of its fields agree on it; else one offset is given up.
        """
        cdef const uint8_t *batch = self.data + self.at
        cdef int64_t position = self.cursor.position
        cdef int64_t after = 0, base, count
        if self._witness(&after) and is_near(position, after):
            return after
        if self.size - self.at >= HEADER:
            base, count = be64(batch), <int32_t> be32(batch + 57)
            if base >= 0 and 0 < count <= LAST_OFFSET - base:
                after = base + count
                if is_near(position, after) and count == <int64_t> <int32_t> be32(batch + 23) + 1:
                    return after
        return position + 1 if position < LAST_OFFSET else position

    cdef object _corrupt(self, str what):
        cdef int64_t base = -1
        if self.size - self.at >= PREFIX:
            base = be64(self.data + self.at)
        cdef Py_ssize_t size = self._whole()
        if size == 0:
            size = self.size - self.at
        if size > 16 << 20:  # MAX_DAMAGED_BYTES
            size = 16 << 20
        return corrupt(
            self.topic, self.partition, base, self.cursor.position, self._next_after(), what,
            PyBytes_FromStringAndSize(<const char *> self.data + self.at, size),
        )


cdef inline bint is_near(int64_t position, int64_t after) noexcept nogil:
    """Whether one batch may reach from one offset to another."""
    return after > position and <uint64_t> after - <uint64_t> position <= 0x80000000ULL


def check_records(records, int codec, int32_t count, int64_t base_timestamp, Py_ssize_t limit):
    """The contract is `pure.check_records`'s."""
    cdef Checked checked
    cdef const uint8_t *p
    cdef Py_ssize_t size
    cdef int fault
    if <int64_t> count * MIN_RECORD > limit:
        raise too_many_records(count, limit)
    source = Source(decompress(codec, records, limit, allocate))
    p = <const uint8_t *> (<Source> source).view.buf
    size = (<Source> source).view.len
    if <int64_t> count * MIN_RECORD > size:
        raise too_many_records(count, size)
    if size >= UNLOCK_BYTES:
        with nogil:
            fault = walk_records(p, p + size, count, base_timestamp, &checked)
    else:
        fault = walk_records(p, p + size, count, base_timestamp, &checked)
    if fault:
        raise CorruptRecordError(RECORD_FAULTS[fault])
    return RecordCheck(checked.earliest, checked.latest, checked.keyless)
