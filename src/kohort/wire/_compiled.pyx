# cython: language_level=3
"""Compiled codecs: a small machine that reads the facts of a message at one version.

Rules:
- The generated Python codecs are its specification, and the only ones that explain. The machine
  refuses any message that is not plainly right (damaged, a value that does not fit, an unknown
  tagged field to be written), and the generated codec decides it from the start.
- No length is believed before it is compared with what is left; a count is compared with the
  elements allowed and with the bytes that so many elements need at least.
- What is decoded owns its memory, but for records, which are slices of the input.

`_writing.pxi` holds the way out.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kohort.errors import DecodeError
from kohort.wire._base import ZERO_UUID
from kohort.wire.messages import APIS
from kohort.wire._runtime import LARGE_BYTES, STRING_BYTES_MAX, in_order

cdef extern from "Python.h":
    object PyType_GenericAlloc(type cls, Py_ssize_t count)
    int PyObject_SetAttr(object o, object name, object value) except -1
    object PyObject_GetAttr(object o, object name)
    object PyUnicode_DecodeUTF8(const char *start, Py_ssize_t size, const char *errors)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum Kind:
    BOOL, INT8, INT16, UINT16, INT32, UINT32, INT64, FLOAT64, UUID, STRING, BYTES, RECORDS, STRUCT

cdef enum Absent:
    VALUE        # one object for all
    EMPTY_LIST   # a fresh one
    MADE         # a fresh struct

KINDS = {
    "bool": BOOL, "int8": INT8, "int16": INT16, "uint16": UINT16, "int32": INT32,
    "uint32": UINT32, "int64": INT64, "float64": FLOAT64, "uuid": UUID, "string": STRING,
    "bytes": BYTES, "records": RECORDS,
}
cdef int[9] WIDTHS = [1, 1, 2, 2, 4, 4, 8, 8, 16]
NATURAL = {"bool": False, "float64": 0.0, "string": "", "bytes": b"", "uuid": ZERO_UUID}

cdef object new_tuple = tuple.__new__
cdef object UNKNOWN_TAGS = "unknown_tags"
cdef Py_ssize_t LARGE = LARGE_BYTES
cdef Py_ssize_t STRING_MAX = STRING_BYTES_MAX
cdef enum:
    TAGS_MAX = 100   # of one struct that is written: the count stays one byte
    ROOM = 512


class Refused(Exception):
    """The machine does not deal with this. Never leaves this module."""



# The facts -----------------------------------------------------------------------------------

cdef class Field:
    """One field of a struct at one version."""

    cdef object name
    cdef Kind kind
    cdef bint array, nullable, compact, ignorable
    cdef Absent absent
    cdef object default
    cdef Layout struct
    cdef Py_ssize_t least
    cdef int tag

    def __init__(self, facts, field, Layout struct, version, flexible):
        self.name = field.name
        self.struct = struct
        self.kind = STRUCT if struct is not None else KINDS[field.base]
        self.array = field.array
        self.nullable = version in field.nullable
        self.compact = flexible and not field.classic
        self.ignorable = field.ignorable
        self.tag = field.tag
        self.least = facts.least_bytes(field, version, flexible)
        self.absent = VALUE
        if field.default == "null" or (field.base == "records" and not field.array):
            self.default = None
        elif field.array:
            self.absent = EMPTY_LIST
            self.default = []
        elif struct is not None:
            if facts.is_shared(field):
                self.default = struct.cls.DEFAULT
            else:
                self.absent = MADE
                self.default = struct.cls
        elif field.default is None:
            self.default = NATURAL.get(field.base, 0)
        elif field.base == "bool":
            self.default = field.default == "true"
        else:
            self.default = int(field.default)

    cdef object make_default(self):
        if self.absent == VALUE:
            return self.default
        return [] if self.absent == EMPTY_LIST else self.default()

    cdef bint differs(self, object value) except -1:
        """Whether a value is not the default."""
        if value is self.default:
            return False
        if self.absent == MADE:
            return value != self.default()
        if self.absent == EMPTY_LIST and type(value) is list:
            return bool(value)
        return value != self.default


cdef class Layout:
    """One struct at one version: its fields in line, its tagged ones, those it does not have."""

    cdef type cls
    cdef bint flexible
    cdef list present, tagged, unset, absent

    def __init__(self, facts, struct, cls, version, flexible, layouts):
        self.cls = cls
        self.flexible = flexible
        self.present = [make(facts, f, version, flexible, layouts) for f in struct.present(version)]
        self.tagged = [make(facts, f, version, flexible, layouts) for f in struct.tagged(version)]
        self.absent = [make(facts, f, version, flexible, layouts) for f in struct.absent(version)]
        self.unset = self.absent + self.tagged


cdef Field make(object facts, object field, object version, object flexible, object layouts):
    return Field(facts, field, layouts(field.struct) if field.struct else None, version, flexible)


def layout_of(definition, module, version):
    """The facts of a message at a version, as the machine wants them. `module` has its classes."""
    from kohort.wire import _schema

    flexible = version in definition.flexible
    known = {}

    def layouts(struct):
        if struct.name not in known:
            cls = getattr(module, struct.name)
            known[struct.name] = Layout(_schema, struct, cls, version, flexible, layouts)
        return known[struct.name]

    return layouts(definition.root)


# Reading -------------------------------------------------------------------------------------

cdef struct Cursor:
    const uint8_t *start
    const uint8_t *p
    const uint8_t *end
    Py_ssize_t left    # elements still allowed
    Py_ssize_t most    # unknown tagged fields of one struct


cdef inline uint32_t be32(const uint8_t *p) noexcept nogil:
    return (<uint32_t> p[0] << 24) | (<uint32_t> p[1] << 16) | (<uint32_t> p[2] << 8) | p[3]


cdef inline int64_t be64(const uint8_t *p) noexcept nogil:
    return <int64_t> ((<uint64_t> be32(p) << 32) | be32(p + 4))


cdef inline int64_t uvarint(Cursor *c) except -1:
    """An unsigned varint of at most 5 bytes and 32 bits."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while shift <= 28:
        if c.p >= c.end:
            raise Refused
        byte = c.p[0]
        c.p += 1
        value |= <uint64_t> (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                raise Refused
            return <int64_t> value
        shift += 7
    raise Refused


cdef object number(Cursor *c, Kind kind):
    """One field of a fixed size."""
    cdef const uint8_t *p = c.p
    cdef int width = WIDTHS[<int> kind]
    cdef uint64_t bits
    cdef double real
    if c.end - p < width:
        raise Refused
    c.p += width
    if kind == INT32:
        return <int32_t> be32(p)
    if kind == INT16:
        return <int16_t> ((<uint16_t> p[0] << 8) | p[1])
    if kind == INT64:
        return be64(p)
    if kind == INT8:
        return <int8_t> p[0]
    if kind == BOOL:
        return p[0] != 0
    if kind == UUID:
        return PyBytes_FromStringAndSize(<const char *> p, 16)
    if kind == UINT16:
        return (<uint16_t> p[0] << 8) | p[1]
    if kind == UINT32:
        return be32(p)
    bits = <uint64_t> be64(p)
    memcpy(&real, &bits, 8)
    return real


cdef object variable(Cursor *c, Kind kind, bint compact, bint nullable, object memory):
    """A string, bytes or records, with the length in front."""
    cdef int64_t size
    cdef const uint8_t *p
    if compact:
        size = uvarint(c) - 1
    elif kind == STRING:
        if c.end - c.p < 2:
            raise Refused
        size = <int16_t> ((<uint16_t> c.p[0] << 8) | c.p[1])
        c.p += 2
    else:
        if c.end - c.p < 4:
            raise Refused
        size = <int32_t> be32(c.p)
        c.p += 4
    if size == -1 and nullable:
        return None
    if size < 0 or size > c.end - c.p or (kind == STRING and size > STRING_MAX):
        raise Refused
    p = c.p
    c.p += size
    if kind == STRING:
        return PyUnicode_DecodeUTF8(<const char *> p, size, NULL)
    if kind == BYTES:
        return PyBytes_FromStringAndSize(<const char *> p, size)
    return memory[p - c.start:p - c.start + size]


cdef object take(Cursor *c, Field field, object memory, bint in_tag):
    """The value of a field."""
    cdef int64_t marker
    if field.array:
        return array(c, field, memory)
    if field.kind < STRING:
        return number(c, field.kind)
    if field.kind < STRUCT:
        return variable(c, field.kind, field.compact, field.nullable, memory)
    if field.nullable:
        if c.p >= c.end:
            raise Refused
        # In line the marker is an int8 (-1 or 1); in a tagged field a varint (0 or 1).
        marker = <int8_t> c.p[0]
        c.p += 1
        if marker == (0 if in_tag else -1):
            return None
        if marker != 1:
            raise Refused
    return struct(c, field.struct, memory)


cdef object array(Cursor *c, Field field, object memory):
    """The elements of an array."""
    cdef int64_t count, n
    cdef list found = []
    if field.compact:
        count = uvarint(c) - 1
    else:
        if c.end - c.p < 4:
            raise Refused
        count = <int32_t> be32(c.p)
        c.p += 4
    if count == -1 and field.nullable:
        return None
    if count < 0 or count > c.left or count * field.least > c.end - c.p:
        raise Refused
    c.left -= count
    for n in range(count):
        if field.kind == STRUCT:
            found.append(struct(c, field.struct, memory))
        elif field.kind < STRING:
            found.append(number(c, field.kind))
        else:
            found.append(variable(c, field.kind, field.compact, False, memory))
    return found


cdef object struct(Cursor *c, Layout layout, object memory):
    """A struct, an object of its class."""
    cdef object made = PyType_GenericAlloc(layout.cls, 0)
    cdef Field field
    PyObject_SetAttr(made, UNKNOWN_TAGS, None)
    for field in layout.unset:
        PyObject_SetAttr(made, field.name, field.make_default())
    for field in layout.present:
        PyObject_SetAttr(made, field.name, take(c, field, memory, False))
    if layout.flexible:
        if c.p >= c.end:
            raise Refused
        if c.p[0] == 0:
            c.p += 1
        else:
            tags(c, layout, made, memory)
    return made


cdef int tags(Cursor *c, Layout layout, object made, object memory) except -1:
    """The tagged fields at the end of a struct."""
    cdef int64_t n, count = uvarint(c), tag, size
    cdef const uint8_t *end
    cdef Field field, known
    cdef list found = []
    if count > c.most + <Py_ssize_t> len(layout.tagged):
        raise Refused
    for n in range(count):
        tag = uvarint(c)
        size = uvarint(c)
        if size > c.end - c.p:
            raise Refused
        end = c.p + size
        known = None
        for field in layout.tagged:
            if field.tag == tag:
                known = field
        if known is None:
            found.append((tag, PyBytes_FromStringAndSize(<const char *> c.p, size)))
            c.p = end
        else:
            PyObject_SetAttr(made, known.name, take(c, known, memory, True))
            if c.p != end:
                raise Refused
    if found:
        PyObject_SetAttr(made, UNKNOWN_TAGS, in_order(found))
    return 0


cdef class Decoder:
    """Reads one message at one version, as the generated decoders do."""

    cdef Layout layout
    cdef object generate, generated
    cdef Py_ssize_t most_bytes, left, most
    cdef bint has_records

    def __init__(self, cls, Layout layout, generate):
        """`generate()` makes the generated decoder that decides what this one refuses."""
        self.layout = layout
        self.generate = generate
        self.has_records = cls.HAS_RECORDS
        self.most_bytes = cls.LIMITS.frame_bytes
        self.left, self.most = cls.LIMITS.elements, cls.LIMITS.tags

    def __call__(self, data, memory, Py_ssize_t at, Py_ssize_t end, left, most):
        cdef Py_buffer view
        cdef Cursor c
        cdef object made
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            c.start = <const uint8_t *> view.buf
            c.p = c.start + at
            c.end = c.start + min(end, view.len)
            c.left = left
            c.most = most
            if 0 <= at <= view.len:
                made = struct(&c, self.layout, memory)
                return made, c.p - c.start
        except (Refused, UnicodeDecodeError, DecodeError):
            pass
        finally:
            PyBuffer_Release(&view)
        if self.generated is None:
            self.generated = self.generate()
        return self.generated(data, memory, at, end, left, most)


READERS = {}
"""The decoders of requests, by API key * 65536 + version."""


cdef int[256] FLEXIBLE_FROM


def _set_flexible():
    cdef int key
    for key in range(256):
        FLEXIBLE_FROM[key] = APIS[key][4] if key in APIS else -1


_set_flexible()


def request_head(frame, kind):
    """The header of a request as a tuple of type `kind`; None when there is anything about it.

    `(key, version, correlation id, client id or None, where the body begins)`.
    """
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef Py_ssize_t size
    cdef int key, version
    cdef object client = None
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t *> view.buf
        if view.len < 10 or p[0] != 0 or FLEXIBLE_FROM[p[1]] < 0:
            return None
        key = p[1]
        version = <int16_t> ((<uint16_t> p[2] << 8) | p[3])
        size = <int16_t> ((<uint16_t> p[8] << 8) | p[9])
        if size < -1 or size > view.len - 10:
            return None
        if size >= 0:
            client = PyUnicode_DecodeUTF8(<const char *> (p + 10), size, NULL)
        else:
            size = 0
        size += 10
        if version >= FLEXIBLE_FROM[key]:
            if size == view.len or p[size] != 0:
                return None
            size += 1
        return new_tuple(kind, (key, version, <int32_t> be32(p + 4), client, size))
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(&view)


def request_body(bytes frame, head):
    """The message behind a request's header; None when it is not for the machine."""
    cdef Decoder decoder = READERS.get(head[0] << 16 | head[1])
    cdef Cursor c
    if decoder is None or len(frame) > decoder.most_bytes:
        return None
    c.start = <const uint8_t *> PyBytes_AsString(frame)
    c.p = c.start + <Py_ssize_t> head[4]
    c.end = c.start + len(frame)
    c.left, c.most = decoder.left, decoder.most
    if c.p < c.start or c.p > c.end:
        return None
    try:
        return struct(&c, decoder.layout, memoryview(frame) if decoder.has_records else None)
    except (Refused, UnicodeDecodeError, DecodeError):
        return None


include "_writing.pxi"
