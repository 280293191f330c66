from kohort.client.producer.plan.fast_send import Front as Front
from kohort.client.producer.plan.fast_send import Guard as Guard
from kohort.client.producer.plan.fast_send import RecordFuture as RecordFuture
from kohort.client.producer.plan.fast_send import Slot as Slot
from kohort.client.producer.plan.fast_send import TopicSlots as TopicSlots
from kohort.client.producer.plan.partitioner import for_key as for_key
from kohort.client.producer.plan.partitioner import murmur2 as murmur2
from kohort.client.producer.plan.partitioner import rows_by_key as rows_by_key
