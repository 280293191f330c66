# cython: embedsignature=False
"""Items, compiled. The contract and the rules are `items.py`'s, line by line."""

cimport cython


@cython.final
@cython.freelist(1024)
cdef class Item:
    cdef public object record
    cdef public object offset
    cdef public object partition
    cdef public object lane
    cdef public object attempt
    cdef public object tries
    cdef public object settled

    def __init__(self, record, partition, lane, attempt=None):
        self.record = record
        self.offset = record.offset
        self.partition = partition
        self.lane = lane
        self.attempt = attempt
        self.tries = 0
        self.settled = False

    def __repr__(self):
        return f"Item({self.record!r}, tries={self.tries})"


cdef inline Item made(record, partition, lane):
    cdef Item item = Item.__new__(Item)
    item.record = record
    item.offset = record.offset
    item.partition = partition
    item.lane = lane
    item.attempt = None
    item.tries = 0
    item.settled = False
    return item


def offsets_and_size(records):
    cdef list offsets = []
    cdef long long size = 0
    for record in records:
        offsets.append(record.offset)
        size += <long long> record.size
    return offsets, size


def in_one_lane(records, partition, lane):
    return [made(record, partition, lane) for record in records]


def by_key(records, partition, topic):
    cdef list items = []
    for record in records:
        key = record.key
        items.append(made(record, partition, None if key is None else (topic, key)))
    return items


def offsets_of(items):
    cdef list offsets = []
    cdef long long size = 0
    cdef Item item
    for item in items:
        offsets.append(item.offset)
        size += <long long> item.record.size
    return offsets, size


def lanes_of(items):
    cdef set lanes = set()
    cdef Item item
    for item in items:
        lanes.add(item.lane)
    return lanes
