# cython: language_level=3
"""Avro values to the buffers of Arrow columns, by a plan of `avro_plan`.

Rules:
- No length is believed before it is compared with what is left.
- A value that does not decode leaves no trace in any column but a null row.
- One pass over a batch, also when its values have several writer schemas.
"""

from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize, PyBytes_Size
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

cdef enum:
    STRUCT = 0
    LIST = 1
    BOOL = 2
    I32 = 3
    I64 = 4
    F32 = 5
    F64 = 6
    BIN = 7
    DEC = 8

cdef enum:
    OP_NULL = 0
    OP_BOOL = 1
    OP_INT = 2
    OP_LONG = 3
    OP_FLOAT = 4
    OP_DOUBLE = 5
    OP_BYTES = 6
    OP_STRING = 7
    OP_FIXED = 8
    OP_ENUM = 9
    OP_ARRAY = 10
    OP_MAP = 11
    OP_UNION = 12
    OP_RECORD = 13
    OP_DECIMAL = 14
    OP_MEMBERS = 15
    OP_CONSTANT = 16
    OP_MEMBER = 17
    OP_REFUSED = 18

cdef struct Col:
    int kind
    int below_count
    int32_t *below
    int64_t rows, nulls, room          # values, of them null, room for values
    uint8_t *valid                     # a byte a value
    uint8_t *data                      # fixed width, or the bytes of BIN
    int64_t data_size, data_room
    int32_t *offsets                   # of BIN and LIST
    int64_t mark_rows, mark_nulls, mark_size

cdef struct Node:
    int op, col
    int64_t arg                        # a factor, or a size
    uint64_t high, low                 # what a decimal is smaller than, without its sign
    const uint8_t *text                # of a symbol or a constant
    int count
    Node *below
    int absent_count
    int32_t *absent

cdef struct Input:
    const uint8_t *p
    const uint8_t *end
    const char *why
    int depth

cdef int *WIDTH = [0, 0, 1, 4, 8, 4, 8, 0, 16]
cdef int DEPTH_MAX = 64
cdef int64_t FREE_ITEMS = 1000  # a block may hold so many items that take no bytes
cdef int64_t MILLIS_MAX = <int64_t> 9223372036854775


cdef inline int fail(Input *i, const char *why) noexcept nogil:
    i.why = why
    return -1


cdef int grow(Col *c) noexcept nogil:
    """Room for one more value. -1 when there is no memory."""
    cdef int64_t room
    cdef void *found
    if c.rows < c.room:
        return 0
    room = 64 if c.room == 0 else c.room * 2
    found = realloc(c.valid, room)
    if found == NULL:
        return -1
    c.valid = <uint8_t *> found
    if WIDTH[c.kind]:
        found = realloc(c.data, room * WIDTH[c.kind])
        if found == NULL:
            return -1
        c.data = <uint8_t *> found
    elif c.kind != STRUCT:
        found = realloc(c.offsets, (room + 1) * 4)
        if found == NULL:
            return -1
        c.offsets = <int32_t *> found
        if c.room == 0:
            c.offsets[0] = 0
    c.room = room
    return 0


cdef int put_bytes(Col *c, const uint8_t *data, int64_t size, Input *i) noexcept nogil:
    cdef int64_t room
    cdef void *found
    if grow(c) < 0:
        return fail(i, b"there is no memory left")
    if c.data_size + size > 0x7FFFFFFF:
        return fail(i, b"the batch is larger than 2 GiB; set batchRows lower")
    if c.data_size + size > c.data_room:
        room = (c.data_size + size) * 2
        found = realloc(c.data, room)
        if found == NULL:
            return fail(i, b"there is no memory left")
        c.data = <uint8_t *> found
        c.data_room = room
    memcpy(c.data + c.data_size, data, size)
    c.data_size += size
    c.valid[c.rows] = 1
    c.rows += 1
    c.offsets[c.rows] = <int32_t> c.data_size
    return 0


cdef int put_null(Col *cols, int index, Input *i) noexcept nogil:
    cdef Col *c = &cols[index]
    cdef int b
    if grow(c) < 0:
        return fail(i, b"there is no memory left")
    c.valid[c.rows] = 0
    c.nulls += 1
    if WIDTH[c.kind]:
        memset(c.data + c.rows * WIDTH[c.kind], 0, WIDTH[c.kind])
    elif c.kind == STRUCT:
        for b in range(c.below_count):
            if put_null(cols, c.below[b], i) < 0:
                return -1
    else:
        c.offsets[c.rows + 1] = c.offsets[c.rows]
    c.rows += 1
    return 0


cdef inline int varint(Input *i, int64_t *out) noexcept nogil:
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while i.p < i.end:
        byte = i.p[0]
        i.p += 1
        raw |= <uint64_t> (byte & 0x7F) << shift
        if byte < 0x80:
            out[0] = <int64_t> (raw >> 1) ^ -<int64_t> (raw & 1)
            return 0
        shift += 7
        if shift > 63:
            return fail(i, b"a number is longer than ten bytes")
    return fail(i, b"it is cut off")


cdef int utf8(const uint8_t *p, int64_t size) noexcept nogil:
    """Whether bytes are UTF-8: nothing longer than it must be, no surrogates."""
    cdef const uint8_t *end = p + size
    cdef uint64_t eight
    cdef uint32_t code, least
    cdef int more
    while p < end:
        if end - p >= 8:
            memcpy(&eight, p, 8)
            if not eight & <uint64_t> 0x8080808080808080:
                p += 8
                continue
        if p[0] < 0x80:
            p += 1
            continue
        if p[0] < 0xC2 or p[0] > 0xF4:
            return 0
        more = 1 if p[0] < 0xE0 else 2 if p[0] < 0xF0 else 3
        least = 0x80 if more == 1 else 0x800 if more == 2 else 0x10000
        if end - p <= more:
            return 0
        code = p[0] & (0x3F >> more)
        p += 1
        while more:
            if p[0] & 0xC0 != 0x80:
                return 0
            code = code << 6 | (p[0] & 0x3F)
            p += 1
            more -= 1
        if code < least or 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            return 0
    return 1


cdef inline int put_number(Col *c, int64_t v, Input *i) noexcept nogil:
    if grow(c) < 0:
        return fail(i, b"there is no memory left")
    if c.kind == I64:
        (<int64_t *> c.data)[c.rows] = v
    elif c.kind == I32:
        (<int32_t *> c.data)[c.rows] = <int32_t> v
    elif c.kind == F64:
        (<double *> c.data)[c.rows] = <double> v
    else:
        (<float *> c.data)[c.rows] = <float> v
    c.valid[c.rows] = 1
    c.rows += 1
    return 0


cdef inline int put_real(Col *c, double v, Input *i) noexcept nogil:
    if grow(c) < 0:
        return fail(i, b"there is no memory left")
    if c.kind == F64:
        (<double *> c.data)[c.rows] = v
    else:
        (<float *> c.data)[c.rows] = <float> v
    c.valid[c.rows] = 1
    c.rows += 1
    return 0


cdef int put_decimal(
    Node *of, Col *c, const uint8_t *p, int64_t size, Input *i
) noexcept nogil:
    """A big-endian two's complement number as 16 bytes, little-endian."""
    cdef uint64_t high = 0, low = 0
    cdef uint8_t *out
    cdef uint8_t sign
    cdef int64_t n
    if size == 0:
        return fail(i, b"a decimal has no bytes")
    if grow(c) < 0:
        return fail(i, b"there is no memory left")
    sign = 0xFF if p[0] & 0x80 else 0
    while size > 16:
        if p[0] != sign:
            return fail(i, b"a decimal has more than 38 digits")
        p += 1
        size -= 1
    if (p[0] & 0x80) != (sign & 0x80):
        return fail(i, b"a decimal has more than 38 digits")
    out = c.data + c.rows * 16
    memset(out, sign, 16)
    for n in range(size):
        out[n] = p[size - 1 - n]
    for n in range(8):
        low |= <uint64_t> (out[n] ^ sign) << 8 * n
        high |= <uint64_t> (out[n + 8] ^ sign) << 8 * n
    if sign:
        low += 1
        high += low == 0
    if high > of.high or (high == of.high and low >= of.low):
        return fail(i, b"a decimal has more digits than its precision")
    c.valid[c.rows] = 1
    c.rows += 1
    return 0


cdef int read_blocks(Node *n, Col *cols, Input *i) noexcept nogil:
    """An array or a map: blocks of items, until one of none."""
    cdef int64_t count, size
    cdef Col *c = NULL
    cdef int64_t items = 0
    if n.col >= 0:
        c = &cols[n.col]
        if grow(c) < 0:
            return fail(i, b"there is no memory left")
    while True:
        if varint(i, &count) < 0:
            return -1
        if count == 0:
            break
        if count < 0:
            if varint(i, &size) < 0:
                return -1
            count = -count  # the smallest of all stays below 0
        items += count
        if count < 0 or count > i.end - i.p + FREE_ITEMS or items > 0x7FFFFFF:
            return fail(i, b"a block is longer than the value")
        while count:
            if n.op == OP_MAP:
                if read(&n.below[1], cols, i) < 0:
                    return -1
            if read(&n.below[0], cols, i) < 0:
                return -1
            count -= 1
    if c != NULL:
        c.valid[c.rows] = 1
        c.rows += 1
        c.offsets[c.rows] = <int32_t> cols[c.below[0]].rows
    return 0


cdef int read_constant(Node *n, Col *cols, Input *i) noexcept nogil:
    """A value that the plan holds."""
    cdef Input held
    held.p = n.text
    held.end = n.text + n.arg
    held.why = NULL
    held.depth = i.depth
    return 0 if read(&n.below[0], cols, &held) == 0 else fail(i, held.why)


cdef int read(Node *n, Col *cols, Input *i) noexcept nogil:
    """One value of a node into its column. -1 when it does not decode."""
    cdef int done
    if i.depth >= DEPTH_MAX:
        return fail(i, b"it is nested deeper than 64")
    i.depth += 1
    done = read_at(n, cols, i)
    i.depth -= 1
    return done


cdef int read_at(Node *n, Col *cols, Input *i) noexcept nogil:
    cdef int64_t v = 0
    cdef int k
    cdef float single
    cdef double real
    cdef int op = n.op
    cdef Col *c = NULL
    if n.col >= 0:
        c = &cols[n.col]
    if op == OP_INT or op == OP_LONG:
        if varint(i, &v) < 0:
            return -1
        if op == OP_INT and v != <int32_t> v:
            return fail(i, b"an int has more than 32 bits")
        if c == NULL:
            return 0
        if n.arg != 1 and (v > MILLIS_MAX or v < -MILLIS_MAX):
            return fail(i, b"a timestamp is out of range")
        return put_number(c, v * n.arg, i)
    if op == OP_STRING or op == OP_BYTES or op == OP_DECIMAL or op == OP_FIXED:
        v = n.arg
        if v < 0 and varint(i, &v) < 0:
            return -1
        if v < 0 or v > i.end - i.p:
            return fail(i, b"it is cut off")
        i.p += v
        if op == OP_STRING and not utf8(i.p - v, v):
            return fail(i, b"a string is not UTF-8")
        if c == NULL:
            return 0
        if op == OP_DECIMAL:
            return put_decimal(n, c, i.p - v, v, i)
        return put_bytes(c, i.p - v, v, i)
    if op == OP_RECORD:
        for k in range(n.count):
            if read(&n.below[k], cols, i) < 0:
                return -1
        if c == NULL:
            return 0
        for k in range(n.absent_count):
            if put_null(cols, n.absent[k], i) < 0:
                return -1
        if grow(c) < 0:
            return fail(i, b"there is no memory left")
        c.valid[c.rows] = 1
        c.rows += 1
        return 0
    if op == OP_UNION or op == OP_MEMBERS or op == OP_MEMBER:
        if op != OP_MEMBER and varint(i, &v) < 0:
            return -1
        if v < 0 or v >= n.count:
            return fail(i, b"a union has no such branch")
        if op == OP_UNION or c == NULL or n.below[v].op == OP_NULL:
            return read(&n.below[v], cols, i)
        if read(&n.below[v], cols, i) < 0:
            return -1
        for k in range(c.below_count):
            if c.below[k] != n.below[v].col and put_null(cols, c.below[k], i) < 0:
                return -1
        if grow(c) < 0:
            return fail(i, b"there is no memory left")
        c.valid[c.rows] = 1
        c.rows += 1
        return 0
    if op == OP_CONSTANT:
        return read_constant(n, cols, i)
    if op == OP_REFUSED:
        return fail(i, b"a branch of its union is not in the schema that it is read by")
    if op == OP_NULL:
        return 0 if c == NULL else put_null(cols, n.col, i)
    if op == OP_ARRAY or op == OP_MAP:
        return read_blocks(n, cols, i)
    if op == OP_ENUM:
        if varint(i, &v) < 0:
            return -1
        if v < 0 or v >= n.count:
            return fail(i, b"an enum has no such symbol")
        return 0 if c == NULL else put_bytes(c, n.below[v].text, n.below[v].arg, i)
    if op == OP_DOUBLE:
        if i.end - i.p < 8:
            return fail(i, b"it is cut off")
        memcpy(&real, i.p, 8)
        i.p += 8
        return 0 if c == NULL else put_real(c, real, i)
    if op == OP_FLOAT:
        if i.end - i.p < 4:
            return fail(i, b"it is cut off")
        memcpy(&single, i.p, 4)
        i.p += 4
        return 0 if c == NULL else put_real(c, single, i)
    # OP_BOOL
    if i.p >= i.end:
        return fail(i, b"it is cut off")
    if i.p[0] > 1:
        return fail(i, b"a boolean is neither 0 nor 1")
    i.p += 1
    if c == NULL:
        return 0
    if grow(c) < 0:
        return fail(i, b"there is no memory left")
    c.data[c.rows] = i.p[-1]
    c.valid[c.rows] = 1
    c.rows += 1
    return 0


cdef int build(Node *n, tuple plan) except -1:
    """A node from `(op, column, argument, below, absent)`; of a symbol, from its bytes.

    Below a constant are the plan that reads it and its bytes, below a decimal its precision.
    """
    cdef object below = plan[3]
    cdef object absent = plan[4]
    cdef Py_ssize_t k
    n.op, n.col, n.arg = plan[0], plan[1], plan[2]
    n.count = 0
    n.below = <Node *> calloc(len(below) + 1, sizeof(Node))
    n.absent = <int32_t *> calloc(len(absent) + 1, sizeof(int32_t))
    if n.below == NULL or n.absent == NULL:
        raise MemoryError
    n.absent_count = len(absent)
    for k in range(len(absent)):
        n.absent[k] = absent[k]
    if n.op == OP_CONSTANT:
        n.text = <const uint8_t *> PyBytes_AsString(below[1])
        n.arg = PyBytes_Size(below[1])
        n.count = 1
        build(&n.below[0], below[0])
        return 0
    if n.op == OP_DECIMAL:
        most = 10 ** below[0]
        n.high, n.low = most >> 64, most & 0xFFFFFFFFFFFFFFFF
        return 0
    for k in range(len(below)):
        n.count += 1
        if n.op == OP_ENUM:
            n.below[k].text = <const uint8_t *> PyBytes_AsString(below[k])
            n.below[k].arg = PyBytes_Size(below[k])
        else:
            build(&n.below[k], below[k])
    return 0


cdef void clear(Node *n) noexcept:
    cdef int k
    if n.op != OP_ENUM:
        for k in range(n.count):
            clear(&n.below[k])
    free(n.below)
    free(n.absent)


cdef class Plan:
    """How values of one schema are read into the columns of a layout."""
    cdef Node node
    cdef object plan  # symbols are pointed into

    def __cinit__(self, tuple plan):
        self.plan = plan
        build(&self.node, plan)

    def __dealloc__(self):
        clear(&self.node)


cdef class Columns:
    """Columns that grow value by value.

    Args:
        layout: `(kind, columns below)` of each column; the first is the struct of the value.
    """
    cdef Col *cols
    cdef int count

    def __cinit__(self, object layout):
        cdef int k
        cdef Py_ssize_t b
        self.count = len(layout)
        self.cols = <Col *> calloc(self.count, sizeof(Col))
        if self.cols == NULL:
            raise MemoryError
        for k in range(self.count):
            kind, below = layout[k]
            self.cols[k].kind = kind
            self.cols[k].below_count = len(below)
            self.cols[k].below = <int32_t *> calloc(len(below) + 1, sizeof(int32_t))
            if self.cols[k].below == NULL:
                raise MemoryError
            for b in range(len(below)):
                self.cols[k].below[b] = below[b]

    def __dealloc__(self):
        cdef int k
        if self.cols == NULL:
            return
        for k in range(self.count):
            free(self.cols[k].below)
            free(self.cols[k].valid)
            free(self.cols[k].data)
            free(self.cols[k].offsets)
        free(self.cols)

    def append(self, size_t offsets_at, size_t data_at, object nulls, Py_ssize_t rows,
               Py_ssize_t framed, object plan_of):
        """Decode values.

        Args:
            offsets_at, data_at: the addresses of a binary array's buffers, at its first row.
            nulls: a byte a row, 1 where it is null; None when none is.
            framed: whether a value begins with a zero byte and the id of its schema.
            plan_of: gives the `Plan` of an id, or the reason (text) why there is none.

        Returns: the reasons, by row, of what did not decode.
        """
        cdef const int32_t *offsets = <const int32_t *> offsets_at
        cdef const uint8_t *data = <const uint8_t *> data_at
        cdef const uint8_t *null = NULL
        cdef Input i
        cdef Plan plan = None
        cdef Node *node = NULL
        cdef int64_t known = -1, asked
        cdef Py_ssize_t row
        cdef int k
        cdef dict bad = {}
        i.depth = 0
        if nulls is not None:
            null = <const uint8_t *> PyBytes_AsString(nulls)
        if not framed:
            plan = plan_of(0)
            node = &plan.node
        for row in range(rows):
            i.why = NULL
            if null != NULL and null[row]:
                if put_null(self.cols, 0, &i) < 0:
                    raise MemoryError
                continue
            i.p = data + offsets[row]
            i.end = data + offsets[row + 1]
            if framed:
                if i.end - i.p < 5 or i.p[0] != 0:
                    bad[row] = "it does not begin as a schema registry's format does (0 and an id)"
                    put_null(self.cols, 0, &i)
                    continue
                asked = (<int64_t> i.p[1] << 24) | (i.p[2] << 16) | (i.p[3] << 8) | i.p[4]
                i.p += 5
                if asked != known:
                    found = plan_of(asked)
                    if isinstance(found, str):
                        bad[row] = found
                        put_null(self.cols, 0, &i)
                        known = -1
                        continue
                    plan = found
                    node = &plan.node
                    known = asked
            for k in range(self.count):
                self.cols[k].mark_rows = self.cols[k].rows
                self.cols[k].mark_nulls = self.cols[k].nulls
                self.cols[k].mark_size = self.cols[k].data_size
            if read(node, self.cols, &i) == 0 and i.p == i.end:
                continue
            i.depth = 0
            bad[row] = (<bytes> i.why).decode() if i.why != NULL else "bytes are left over"
            for k in range(self.count):
                self.cols[k].rows = self.cols[k].mark_rows
                self.cols[k].nulls = self.cols[k].mark_nulls
                self.cols[k].data_size = self.cols[k].mark_size
            if put_null(self.cols, 0, &i) < 0:
                raise MemoryError
        return bad

    def take(self):
        """`(rows, nulls, validity or None, offsets or None, data or None)` of each column."""
        cdef list found = []
        cdef Col *c
        cdef int k
        for k in range(self.count):
            c = &self.cols[k]
            valid = packed(c.valid, c.rows) if c.nulls else None
            offsets = None
            data = None
            if c.kind == BIN or c.kind == LIST:
                if c.rows:
                    offsets = PyBytes_FromStringAndSize(<char *> c.offsets, (c.rows + 1) * 4)
                else:
                    offsets = bytes(4)
                if c.kind == BIN:
                    data = PyBytes_FromStringAndSize(<char *> c.data, c.data_size)
            elif c.kind == BOOL:
                data = packed(c.data, c.rows)
            elif c.kind != STRUCT:
                data = PyBytes_FromStringAndSize(<char *> c.data, c.rows * WIDTH[c.kind])
            found.append((c.rows, c.nulls, valid, offsets, data))
        return found


cdef object packed(const uint8_t *values, int64_t count):
    """A bit for each byte that is not 0, the first lowest."""
    cdef bytes out = PyBytes_FromStringAndSize(NULL, (count + 7) // 8)
    cdef uint8_t *bits = <uint8_t *> PyBytes_AsString(out)
    cdef int64_t n
    memset(bits, 0, (count + 7) // 8)
    for n in range(count):
        bits[n >> 3] |= (values[n] != 0) << (n & 7)
    return out
