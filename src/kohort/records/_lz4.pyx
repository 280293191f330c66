# cython: language_level=3
"""LZ4 on the way out: all blocks of a frame in one call, without the interpreter's lock.

A library that is called for each block takes the lock back as often, and waits for it each time
(docs/adr/0017). `lz4_blocks.py` is the specification.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t

from kohort.errors import UsageError

cdef extern from "_lz4.h":
    enum:
        LZ4_BLOCK "KH_LZ4_BLOCK"
    size_t kh_lz4_room(size_t size) nogil
    size_t kh_lz4_blocks(const uint8_t *data, size_t size, uint8_t *out) nogil

cdef enum:
    # So much is compressed in the time that a hand-over of the interpreter's lock may take.
    LZ4_UNLOCK_BYTES = 8192


def lz4_blocks(data, out):
    """Compresses `data` as the blocks of a frame into `out`; how many bytes of it they take."""
    cdef Py_buffer source
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        return packed(&source, out)
    finally:
        PyBuffer_Release(&source)


cdef size_t packed(const Py_buffer *source, object out) except? 0:
    cdef size_t size = <size_t> source.len, taken
    cdef size_t last = min(size, <size_t> LZ4_BLOCK)
    cdef size_t room = size + (size // LZ4_BLOCK + 2) * 4 + kh_lz4_room(last) - last
    cdef const uint8_t *start = <const uint8_t *> source.buf
    cdef uint8_t *target
    cdef Py_buffer view
    PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
    try:
        if <size_t> view.len < room:
            raise UsageError(f"lz4 needs {room} bytes for {size}; there are {view.len}")
        target = <uint8_t *> view.buf
        if size >= LZ4_UNLOCK_BYTES:
            with nogil:
                taken = kh_lz4_blocks(start, size, target)
        else:
            taken = kh_lz4_blocks(start, size, target)
    finally:
        PyBuffer_Release(&view)
    return taken
