from kohort.processing.items import Item as Item
from kohort.processing.items import by_key as by_key
from kohort.processing.items import in_one_lane as in_one_lane
from kohort.processing.items import lanes_of as lanes_of
from kohort.processing.items import offsets_and_size as offsets_and_size
from kohort.processing.items import offsets_of as offsets_of
