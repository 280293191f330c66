"""What a shard keeps: groups, members, offsets, their tables and their records.

Pure. Imports `group.assignors` and `wire`.
"""
