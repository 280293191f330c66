# Frequent group traffic: parse a Heartbeat, a ConsumerGroupHeartbeat without changes and an
# OffsetCommit, and write their answers. The coordinator (`kohort.group`) decides; this part only
# reads and writes. Part of `_fast_path.pyx`.

cdef enum:
    ASKED_MAX = 16_384     # larger commits are rare
    OFFSET_COMMIT = 8
    COMMIT_FIRST = 6       # no retention time any more, and leader epochs
    COMMIT_INSTANCE = 7
    COMMIT_FLEXIBLE = 8
    COMMIT_IDS = 10
    COMMIT_LAST = 10
    HEARTBEAT = 12
    BEAT_THROTTLE = 1
    BEAT_INSTANCE = 3
    BEAT_FLEXIBLE = 4
    BEAT_LAST = 4
    CONSUMER_HEARTBEAT = 68
    CONSUMER_REGEX = 1
    CONSUMER_LAST = 1


cdef struct Reader:
    const uint8_t *p
    const uint8_t *end
    bint flexible
    bint bad    # it is not for the fast path


cdef inline bint has(Reader *r, Py_ssize_t size) noexcept:
    if r.end - r.p < size:
        r.bad = True
    return not r.bad


cdef inline int32_t int32(Reader *r) noexcept:
    if not has(r, 4):
        return 0
    r.p += 4
    return <int32_t> be32(r.p - 4)


cdef inline Py_ssize_t varint(Reader *r) noexcept:
    """A number below 2^21; others are not usual here."""
    cdef Py_ssize_t value = 0
    cdef int shift = 0
    while shift < 21 and has(r, 1):
        value |= <Py_ssize_t> (r.p[0] & 127) << shift
        r.p += 1
        if (r.p - 1)[0] < 128:
            return value
        shift += 7
    r.bad = True
    return 0


cdef inline Py_ssize_t size_of(Reader *r) noexcept:
    """The size of a text; -1: null."""
    if r.flexible:
        return varint(r) - 1
    if not has(r, 2):
        return 0
    r.p += 2
    return be16(r.p - 2)


cdef object text(Reader *r, bint nullable):
    """A text of ASCII; None: null."""
    cdef Py_ssize_t at, size = size_of(r)
    if size == -1 and nullable:
        return None
    if size < 0 or not has(r, size):
        r.bad = True
        return None
    for at in range(size):
        if r.p[at] > 127:
            r.bad = True
            return None
    r.p += size
    return PyUnicode_DecodeUTF8(<const char *> (r.p - size), size, NULL)


cdef inline void zero(Reader *r) noexcept:
    """A byte that must be 0: no tagged fields, or a null."""
    if has(r, 1):
        r.bad = r.p[0] != 0
        r.p += 1


@cython.final
cdef class Asked:
    """One request of a group, and its place in the order of its connection's answers."""

    cdef readonly object peer, frame
    cdef readonly int api, api_version, correlation_id
    cdef readonly str client_id
    cdef readonly str group_id, member_id
    cdef readonly object instance_id
    """None where the member is not a static one."""
    cdef readonly int epoch
    """The generation, or the member's epoch."""
    cdef public list offsets
    """Of a commit: `(topic's name or its id, partition, offset, leader epoch, metadata)`."""
    cdef public bint answered
    cdef public object response, given_up
    cdef Py_ssize_t at

    @property
    def client_host(self):
        return self.peer.host

    def settle(self, said):
        """Take the answer: a code (Heartbeat), when to heartbeat again (ConsumerGroupHeartbeat), a
        list of codes (OffsetCommit); anything else is a message."""
        if type(said) is int:
            if self.api == HEARTBEAT:
                self.response = [beat_answer(self, said)]
            else:
                self.response = [unchanged_answer(self, said)]
        elif type(said) is list:
            self.response = [commit_answer(self, said)]
        else:
            self.response = said
        self.answered = True

    def answer(self, said):
        """The same, and let the connection know."""
        self.settle(said)
        self.peer.answered(self)


cdef Asked asked_of(object peer, object frame, const uint8_t *start, Py_ssize_t size):
    """The request in a frame if it is a usual one of a group, else None."""
    cdef Reader r
    cdef Asked asked
    cdef int api = start[1], version = be16(start + 2)
    cdef bint good
    if start[0] != 0 or version < 0 or size > ASKED_MAX:
        return None
    if api == HEARTBEAT:
        good = version <= BEAT_LAST
        r.flexible = version >= BEAT_FLEXIBLE
    elif api == OFFSET_COMMIT:
        good = COMMIT_FIRST <= version <= COMMIT_LAST
        r.flexible = version >= COMMIT_FLEXIBLE
    else:
        good = version <= CONSUMER_LAST
        r.flexible = True
    if not good:
        return None
    asked = Asked.__new__(Asked)
    asked.api, asked.api_version = api, version
    asked.correlation_id = <int32_t> be32(start + 4)
    good = r.flexible
    r.p, r.end, r.flexible, r.bad = start + 8, start + size, False, False
    asked.client_id = text(&r, True) or ""
    r.flexible = good
    if r.flexible:
        zero(&r)
    asked.group_id = text(&r, False)
    if api == CONSUMER_HEARTBEAT:
        asked.member_id = text(&r, False)
        asked.epoch = int32(&r)
    else:
        asked.epoch = int32(&r)
        asked.member_id = text(&r, False)
    if r.bad:
        return None
    if api == HEARTBEAT:
        if version >= BEAT_INSTANCE:
            asked.instance_id = text(&r, True)
    elif api == OFFSET_COMMIT:
        if version >= COMMIT_INSTANCE:
            asked.instance_id = text(&r, True)
        asked.at = r.p - start
        read_offsets(asked, &r)
    else:
        nothing_new(&r, version)
    if r.flexible:
        zero(&r)
    if r.bad or r.p != r.end:
        return None
    asked.peer, asked.frame = peer, frame
    return asked


cdef void nothing_new(Reader *r, int version) noexcept:
    """No instance, rack, time-out (-1), topics, regular expression, assignor, partitions."""
    zero(r)
    zero(r)
    if int32(r) != -1:
        r.bad = True
    zero(r)
    if version >= CONSUMER_REGEX:
        zero(r)
    zero(r)
    zero(r)


cdef inline Py_ssize_t count_of(Reader *r) noexcept:
    """Of an array that is not null and not empty."""
    cdef Py_ssize_t count = varint(r) - 1 if r.flexible else int32(r)
    if count <= 0:
        r.bad = True
    return count


cdef int read_offsets(Asked asked, Reader *r) except -1:
    cdef Py_ssize_t topics, partitions
    cdef int32_t partition, leader_epoch
    cdef int64_t offset
    cdef object topic
    cdef list found = []
    topics = count_of(r)
    while topics > 0 and not r.bad:
        topics -= 1
        if asked.api_version < COMMIT_IDS:
            topic = text(r, False)
        elif has(r, ID_BYTES):
            topic = PyBytes_FromStringAndSize(<const char *> r.p, ID_BYTES)
            r.p += ID_BYTES
        partitions = count_of(r)
        while partitions > 0 and not r.bad:
            partitions -= 1
            if not has(r, 16):
                break
            partition, offset = <int32_t> be32(r.p), be64(r.p + 4)
            leader_epoch = <int32_t> be32(r.p + 12)
            r.p += 16
            found.append((topic, partition, offset, leader_epoch, text(r, True)))
            if r.flexible:
                zero(r)
        if r.flexible:
            zero(r)
    asked.offsets = found
    return 0


cdef bytes beat_answer(Asked asked, int code):
    cdef uint8_t[20] made
    cdef uint8_t *p = made + 8
    cdef bint flexible = asked.api_version >= BEAT_FLEXIBLE
    if flexible:
        p[0] = 0
        p += 1
    if asked.api_version >= BEAT_THROTTLE:
        put32(p, 0)
        p += 4
    p = put16(p, code)
    if flexible:
        p[0] = 0
        p += 1
    return framed(asked, made, p)


cdef bytes unchanged_answer(Asked asked, int32_t interval_ms):
    cdef Py_ssize_t member = len(asked.member_id)
    cdef bytes name = asked.member_id.encode()
    cdef bytes made = PyBytes_FromStringAndSize(NULL, member + 64)
    cdef uint8_t *start = <uint8_t *> PyBytes_AsString(made)
    cdef uint8_t *p = start + 8
    p[0] = 0                  # no tags
    put32(p + 1, 0)           # throttle time
    p = put16(p + 5, 0)
    p[0] = 0                  # no message
    p = put_varint(p + 1, member + 1)
    memcpy(p, PyBytes_AsString(name), member)
    p += member
    put32(p, <uint32_t> asked.epoch)
    put32(p + 4, <uint32_t> interval_ms)
    p[8] = 0xFF               # no assignment
    p[9] = 0
    return framed(asked, start, p + 10)


cdef bytes commit_answer(Asked asked, list codes):
    """The topics and partitions as they were named, each with its code."""
    cdef Py_buffer view
    cdef bytes made
    cdef uint8_t *start
    cdef uint8_t *p
    cdef Py_ssize_t at = 0, topics, partitions, size
    cdef const uint8_t *from_
    cdef Reader r
    PyObject_GetBuffer(asked.frame, &view, PyBUF_SIMPLE)
    try:
        made = PyBytes_FromStringAndSize(NULL, view.len + 32)
        start = <uint8_t *> PyBytes_AsString(made)
        p = start + 8
        r.p, r.bad = <const uint8_t *> view.buf + asked.at, False
        r.end = <const uint8_t *> view.buf + view.len
        r.flexible = asked.api_version >= COMMIT_FLEXIBLE
        if r.flexible:
            p[0] = 0
            p += 1
        put32(p, 0)
        p += 4
        from_ = r.p
        topics = count_of(&r)
        while topics > 0:
            topics -= 1
            r.p += ID_BYTES if asked.api_version >= COMMIT_IDS else size_of(&r)
            partitions = count_of(&r)
            p = copied(p, from_, r.p)
            while partitions > 0:
                partitions -= 1
                p = copied(p, r.p, r.p + 4)
                p = put16(p, codes[at])
                at += 1
                r.p += 16
                size = size_of(&r)
                r.p += max(size, 0)
                if r.flexible:
                    r.p += 1
                    p[0] = 0
                    p += 1
            if r.flexible:
                r.p += 1
                p[0] = 0
                p += 1
            from_ = r.p
        if r.flexible:
            p[0] = 0
            p += 1
        return framed(asked, start, p)
    finally:
        PyBuffer_Release(&view)


cdef inline uint8_t *copied(uint8_t *p, const uint8_t *from_, const uint8_t *to) noexcept:
    memcpy(p, from_, to - from_)
    return p + (to - from_)


cdef inline uint8_t *put16(uint8_t *p, int value) noexcept:
    p[0] = <uint8_t> (value >> 8)
    p[1] = <uint8_t> value
    return p + 2


cdef inline uint8_t *put_varint(uint8_t *p, Py_ssize_t value) noexcept:
    while value > 127:
        p[0] = <uint8_t> ((value & 127) | 128)
        p += 1
        value >>= 7
    p[0] = <uint8_t> value
    return p + 1


cdef bytes framed(Asked asked, uint8_t *start, uint8_t *end):
    """An answer with its size and correlation id in front."""
    put32(start, <uint32_t> (end - start - 4))
    put32(start + 4, <uint32_t> asked.correlation_id)
    return PyBytes_FromStringAndSize(<const char *> start, end - start)
