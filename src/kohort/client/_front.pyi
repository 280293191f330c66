from kohort.client.front import Front as Front
from kohort.client.front import Guard as Guard
from kohort.client.front import RecordFuture as RecordFuture
from kohort.client.front import Slot as Slot
from kohort.client.front import TopicSlots as TopicSlots
from kohort.client.partitioner import for_key as for_key
from kohort.client.partitioner import murmur2 as murmur2
from kohort.client.partitioner import rows_by_key as rows_by_key
