"""The compiled loops are those of `loops`."""

from kohort.group.assignors.loops import PartitionReader as PartitionReader
from kohort.group.assignors.loops import PartitionWriter as PartitionWriter
from kohort.group.assignors.loops import deal as deal
from kohort.group.assignors.loops import hand_out as hand_out
from kohort.group.assignors.loops import held as held
from kohort.group.assignors.loops import keep as keep
from kohort.group.assignors.loops import note as note
from kohort.group.assignors.loops import tally as tally
