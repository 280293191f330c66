# Buffers lent to Arrow by its C data interface: one call into pyarrow for a whole record batch,
# instead of a Python object for every buffer and every column.

cdef extern from "Python.h":
    int Py_IsInitialized() nogil

cdef extern from "_lend.h":
    ctypedef struct ArrowArray "kh_arrow_array":
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void **buffers
        ArrowArray **children
        ArrowArray *dictionary
        void (*release)(ArrowArray *array) noexcept nogil
        void *private_data

cdef enum:
    MOST_BUFFERS = 3

cdef struct Loan:
    const void *pointers[MOST_BUFFERS]
    Py_buffer views[MOST_BUFFERS]  # hold the memory
    ArrowArray *arrays  # the children
    ArrowArray **children


cdef int lend(ArrowArray *out, tuple layout) except -1:
    """Fills `out`, whose `release` gives back everything that a failure leaves here."""
    cdef Loan *loan
    cdef Py_ssize_t i
    length, nulls, offset, buffers, children = layout
    if len(buffers) > MOST_BUFFERS:
        raise UsageError(f"an array of {len(buffers)} buffers; there are at most {MOST_BUFFERS}")
    memset(out, 0, sizeof(ArrowArray))
    loan = <Loan *> calloc(1, sizeof(Loan))
    if loan == NULL:
        raise MemoryError
    out.private_data = loan
    out.release = give_back
    out.buffers = loan.pointers
    out.length, out.null_count, out.offset = length, nulls, offset
    out.n_buffers = len(buffers)
    for i in range(len(buffers)):
        if buffers[i] is not None:
            PyObject_GetBuffer(buffers[i], &loan.views[i], PyBUF_SIMPLE)
            loan.pointers[i] = loan.views[i].buf
    if children:
        loan.arrays = <ArrowArray *> calloc(len(children), sizeof(ArrowArray))
        loan.children = <ArrowArray **> calloc(len(children), sizeof(ArrowArray *))
        if loan.arrays == NULL or loan.children == NULL:
            raise MemoryError
        out.children = loan.children
        for i in range(len(children)):
            loan.children[i] = &loan.arrays[i]
            out.n_children = i + 1
            lend(&loan.arrays[i], children[i])
    return 0


cdef void give_back(ArrowArray *array) noexcept nogil:
    """What the borrower calls when it is done, on any thread."""
    if Py_IsInitialized():  # else the memory goes with the process
        give_back_locked(array)
    array.release = NULL


cdef void give_back_locked(ArrowArray *array) noexcept with gil:
    cdef Loan *loan = <Loan *> array.private_data
    cdef ArrowArray *child
    cdef int i
    for i in range(MOST_BUFFERS):
        PyBuffer_Release(&loan.views[i])
    for i in range(array.n_children):
        child = array.children[i]
        if child.release != NULL:  # else the borrower has moved it elsewhere
            child.release(child)
    free(loan.arrays)
    free(loan.children)
    free(loan)


@cython.final
@cython.no_gc
cdef class Lent:
    """An array, with those below it, that another library may take over at `address`.

    `layout` is (rows, nulls, first row, buffers, layouts of the children).
    """

    cdef ArrowArray array

    def __cinit__(self, tuple layout):
        lend(&self.array, layout)

    @property
    def address(self):
        return <size_t> &self.array

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)
