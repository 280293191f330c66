# cython: embedsignature=False
"""Items, compiled. The contract and the rules are `items.py`'s, line by line."""

cimport cython

from collections import deque

from kohort.retry.registering import refuse_returned


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


def of_one_partition(items):
    cdef Item item, first = items[0]
    for item in items:
        if item.partition is not first.partition:
            return False
    return True


def take_done(set unfinished, offsets):
    cdef Py_ssize_t before = len(unfinished)
    cdef long long highest = -1, offset
    for each in offsets:
        if each in unfinished:
            unfinished.discard(each)
            offset = each
            if offset > highest:
                highest = offset
    return before - len(unfinished), highest


def enter_lanes(dict lanes, items, ready):
    cdef Py_ssize_t waiting = 0
    cdef list begin = []
    cdef Item item
    for item in items:
        if item.lane is None:
            begin.append(item)
        elif item.lane not in lanes:
            lanes[item.lane] = None
            begin.append(item)
        else:
            followers = lanes[item.lane]
            if followers is None:
                followers = lanes[item.lane] = deque()
            followers.append(item)
            waiting += 1
    ready.extend(begin)
    return waiting


def leave_lanes(dict lanes, items, kept, ready):
    cdef Py_ssize_t begun = 0
    cdef bint keeps = bool(kept)
    cdef set gone_on = set()
    cdef Item item
    for item in items:
        lane = item.lane
        if lane is None or lane not in lanes or (keeps and lane in kept):
            continue
        followers = lanes[lane]
        if not followers:
            if begun == 0 or lane not in gone_on:
                del lanes[lane]
        elif lane not in gone_on:
            gone_on.add(lane)
            ready.append(followers.popleft())
            begun += 1
    return begun


@cython.freelist(256)
cdef class Shown:
    cdef public object _source
    cdef public object _attempt
    cdef public object _lookups
    cdef public object data
    cdef public object outputs

    def __init__(self, record, attempt=None, lookups=None, data=None):
        self._source = record
        self._attempt = attempt
        self._lookups = lookups
        self.data = data
        self.outputs = None


def run_plain(items, Py_ssize_t start, function, view, lookups):
    cdef Py_ssize_t index, end = len(items)
    cdef Item item
    cdef Shown shown
    route = (<Item> items[start]).partition.route
    for index in range(start, end):
        item = items[index]
        if item.partition.route is not route:
            return index, None, None
        record = item.record
        shown = view.__new__(view)
        shown._source = record
        shown._attempt = item.attempt
        shown._lookups = lookups
        shown.data = record.value
        shown.outputs = None
        try:
            returned = function(shown)
        except Exception as error:
            return index, shown, error
        if returned is not None:
            refuse_returned(route.topic, returned)
        if shown.outputs is not None:
            return index, shown, None
    return end, None, None
