# The way out of the compiled codecs: messages to bytes. Included by `_compiled.pyx`.

cdef enum:
    API_VERSIONS = 18

cdef struct Pen:
    uint8_t *data
    Py_ssize_t size
    Py_ssize_t room
    bint grown    # beyond the first room, which is the caller's


cdef inline uint8_t *more(Pen *pen, Py_ssize_t count) except NULL:
    """Room for `count` more bytes, which are taken as written."""
    cdef uint8_t *at
    if pen.room - pen.size < count:
        grow(pen, count)
    at = pen.data + pen.size
    pen.size += count
    return at


cdef int grow(Pen *pen, Py_ssize_t count) except -1:
    cdef Py_ssize_t room = 2 * pen.room + count
    cdef uint8_t *data = <uint8_t *> PyMem_Realloc(pen.data if pen.grown else NULL, room)
    if data == NULL:
        raise MemoryError
    if not pen.grown:
        memcpy(data, pen.data, pen.size)
    pen.data, pen.room, pen.grown = data, room, True
    return 0


cdef inline void put16(uint8_t *p, uint32_t value) noexcept nogil:
    p[0] = <uint8_t> (value >> 8)
    p[1] = <uint8_t> value


cdef inline void put32(uint8_t *p, uint32_t value) noexcept nogil:
    put16(p, value >> 16)
    put16(p + 2, value)


cdef inline void put64(uint8_t *p, uint64_t value) noexcept nogil:
    put32(p, <uint32_t> (value >> 32))
    put32(p + 4, <uint32_t> value)


cdef int put_uvarint(Pen *pen, uint64_t value) except -1:
    while value > 127:
        more(pen, 1)[0] = <uint8_t> (value | 128)
        value >>= 7
    more(pen, 1)[0] = <uint8_t> value
    return 0


cdef int put_number(Pen *pen, Kind kind, object value) except -1:
    cdef int64_t n
    cdef double real
    cdef uint64_t bits
    if kind == UUID:
        if type(value) is not bytes or len(<bytes> value) != 16:
            raise Refused
        memcpy(more(pen, 16), PyBytes_AsString(value), 16)
        return 0
    if kind == BOOL:
        more(pen, 1)[0] = 1 if value else 0
        return 0
    if kind == FLOAT64:
        real = value
        memcpy(&bits, &real, 8)
        put64(more(pen, 8), bits)
        return 0
    if not isinstance(value, int):
        raise Refused
    n = value
    if kind == INT32:
        if not -0x80000000 <= n <= 0x7FFFFFFF:
            raise Refused
        put32(more(pen, 4), <uint32_t> n)
    elif kind == INT64:
        put64(more(pen, 8), <uint64_t> n)
    elif kind == INT16:
        if not -0x8000 <= n <= 0x7FFF:
            raise Refused
        put16(more(pen, 2), <uint32_t> n)
    elif kind == INT8:
        if not -0x80 <= n <= 0x7F:
            raise Refused
        more(pen, 1)[0] = <uint8_t> n
    elif kind == UINT16:
        if not 0 <= n <= 0xFFFF:
            raise Refused
        put16(more(pen, 2), <uint32_t> n)
    else:
        if not 0 <= n <= 0xFFFFFFFF:
            raise Refused
        put32(more(pen, 4), <uint32_t> n)
    return 0


cdef int put_size(Pen *pen, bint compact, bint short, int64_t size) except -1:
    """A length or count; -1 is null."""
    if size > 0x7FFFFFFF - 1:
        raise Refused
    if compact:
        put_uvarint(pen, <uint64_t> (size + 1))
    elif short:
        put16(more(pen, 2), <uint32_t> size)
    else:
        put32(more(pen, 4), <uint32_t> size)
    return 0


cdef int put_variable(Pen *pen, Kind kind, bint compact, bint nullable, object value) except -1:
    """A string or bytes."""
    cdef const char *text
    cdef Py_ssize_t size
    if value is None:
        if not nullable:
            raise Refused
        put_size(pen, compact, kind == STRING, -1)
        return 0
    if kind == STRING:
        if not isinstance(value, str):
            raise Refused
        text = PyUnicode_AsUTF8AndSize(value, &size)
        if size > STRING_MAX:
            raise Refused
    else:
        if type(value) is not bytes:
            if type(value) is not bytearray and (
                type(value) is not memoryview or value.nbytes != len(value)
            ):
                raise Refused
            value = bytes(value)
        text = PyBytes_AsString(value)
        size = len(<bytes> value)
    put_size(pen, compact, kind == STRING, size)
    memcpy(more(pen, size), text, size)
    return 0


cdef int put_records(Pen *pen, Field field, object value, list parts) except -1:
    """One buffer of record batches; a large one becomes a part of its own."""
    cdef Py_buffer view
    if value is None:
        if not field.nullable:
            raise Refused
        put_size(pen, field.compact, False, -1)
        return 0
    if type(value) is list:
        if len(<list> value) != 1:
            raise Refused
        value = (<list> value)[0]
    if type(value) is not bytes and type(value) is not memoryview and type(value) is not bytearray:
        raise Refused
    if type(value) is memoryview and value.nbytes != len(value):
        raise Refused
    PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    try:
        put_size(pen, field.compact, False, view.len)
        if view.len <= LARGE:
            memcpy(more(pen, view.len), view.buf, view.len)
            return 0
    finally:
        PyBuffer_Release(&view)
    parts.append(PyBytes_FromStringAndSize(<const char *> pen.data, pen.size))
    parts.append(value)
    pen.size = 0
    return 0


cdef int put(Pen *pen, Field field, object value, list parts, bint in_tag) except -1:
    """The value of a field."""
    if field.array:
        put_array(pen, field, value, parts)
    elif field.kind < STRING:
        put_number(pen, field.kind, value)
    elif field.kind == RECORDS:
        put_records(pen, field, value, parts)
    elif field.kind < STRUCT:
        put_variable(pen, field.kind, field.compact, field.nullable, value)
    else:
        if field.nullable:
            if value is None:
                more(pen, 1)[0] = 0 if in_tag else 255
                return 0
            more(pen, 1)[0] = 1
        put_struct(pen, field.struct, value, parts)
    return 0


cdef int put_array(Pen *pen, Field field, object value, list parts) except -1:
    if value is None:
        if not field.nullable:
            raise Refused
        put_size(pen, field.compact, False, -1)
        return 0
    if type(value) is not list and type(value) is not tuple:
        raise Refused
    put_size(pen, field.compact, False, len(value))
    for each in value:
        if field.kind == STRUCT:
            put_struct(pen, field.struct, each, parts)
        elif field.kind < STRING:
            put_number(pen, field.kind, each)
        else:
            put_variable(pen, field.kind, field.compact, False, each)
    return 0


cdef int put_struct(Pen *pen, Layout layout, object source, list parts) except -1:
    cdef Field field
    if PyObject_GetAttr(source, UNKNOWN_TAGS):
        raise Refused
    for field in layout.absent:
        if not field.ignorable and field.differs(PyObject_GetAttr(source, field.name)):
            raise Refused
    for field in layout.present:
        put(pen, field, PyObject_GetAttr(source, field.name), parts, False)
    if layout.flexible:
        put_tags(pen, layout, source, parts)
    return 0


cdef int put_tags(Pen *pen, Layout layout, object source, list parts) except -1:
    """The tagged fields that have something to say."""
    cdef Field field
    cdef list found = None
    for field in layout.tagged:
        value = PyObject_GetAttr(source, field.name)
        if field.differs(value):
            if found is None:
                found = []
            found.append((field.tag, tagged(field, value)))
    if found is None:
        more(pen, 1)[0] = 0
        return 0
    more(pen, 1)[0] = <uint8_t> len(found)  # there are no hundred of them in any schema
    for tag, data in found:
        put_uvarint(pen, tag)
        put_uvarint(pen, len(data))
        memcpy(more(pen, len(data)), PyBytes_AsString(data), len(data))
    return 0


cdef bytes tagged(Field field, object value):
    """The bytes of a tagged field."""
    cdef uint8_t room[ROOM]
    cdef Pen pen
    cdef list parts = []
    pen.data, pen.size, pen.room, pen.grown = room, 0, ROOM, False
    try:
        put(&pen, field, value, parts, True)
        if parts:
            raise Refused
        return PyBytes_FromStringAndSize(<const char *> pen.data, pen.size)
    finally:
        if pen.grown:
            PyMem_Free(pen.data)


CONSTANTS = {}
"""By their ids messages that never change, and never go."""


cdef class Encoder:
    """Writes one message at one version, as the generated encoders do."""

    cdef Layout layout
    cdef object generate, generated
    cdef bint tagged_head
    cdef dict kept

    def __init__(self, cls, version, Layout layout, generate):
        """`generate()` makes the generated encoder that decides what this one refuses."""
        self.layout = layout
        self.generate = generate
        self.kept = {}
        self.tagged_head = version >= cls.FLEXIBLE_FROM and cls.API_KEY != API_VERSIONS

    def response(self, message, correlation_id):
        """A whole response frame as `encode_response` gives it; None what is not for the machine.
        """
        cdef uint8_t room[ROOM]
        cdef Pen pen
        cdef list parts = []
        cdef bytes first, body
        cdef Py_ssize_t size
        cdef bint is_constant = id(message) in CONSTANTS
        pen.data, pen.size, pen.room, pen.grown = room, 4, ROOM, False
        try:
            put_number(&pen, INT32, correlation_id)
            if self.tagged_head:
                more(&pen, 1)[0] = 0
            if is_constant and id(message) in self.kept:
                body = self.kept[id(message)]
                memcpy(more(&pen, len(body)), PyBytes_AsString(body), len(body))
            else:
                size = pen.size
                put_struct(&pen, self.layout, message, parts)
                if is_constant and not parts:
                    body = PyBytes_FromStringAndSize(
                        <const char *> (pen.data + size), pen.size - size
                    )
                    self.kept[id(message)] = body
            parts.append(PyBytes_FromStringAndSize(<const char *> pen.data, pen.size))
        except Exception:  # any error: the generated codec raises it with its reason
            return None
        finally:
            if pen.grown:
                PyMem_Free(pen.data)
        size = sum([len(part) for part in parts]) - 4 if len(parts) > 1 else pen.size - 4
        if size > 0x7FFFFFFF:
            return None
        first = parts[0]  # it is not shared yet
        put32(<uint8_t *> PyBytes_AsString(first), <uint32_t> size)
        return parts

    def __call__(self, message, list out, list large):
        cdef uint8_t room[ROOM]
        cdef Pen pen
        cdef list parts = []
        pen.data, pen.size, pen.room, pen.grown = room, 0, ROOM, False
        try:
            put_struct(&pen, self.layout, message, parts)
            for n in range(1, len(parts), 2):
                large.append(len(out) + n)
            out += parts
            out.append(PyBytes_FromStringAndSize(<const char *> pen.data, pen.size))
            return
        except Exception:  # any error: the generated codec raises it with its reason
            pass
        finally:
            if pen.grown:
                PyMem_Free(pen.data)
        if self.generated is None:
            self.generated = self.generate()
        self.generated(message, out, large)
