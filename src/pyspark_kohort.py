"""Lets Spark find `format("kohort")` by itself: it looks into every module named `pyspark_*`.

A broken module of that name would disable all such sources, so nothing here can fail: without
pyarrow or a fitting pyspark there is simply no `DefaultSource`.
"""

from __future__ import annotations

try:
    from kohort.spark.source import KohortDataSource

    class DefaultSource(KohortDataSource):
        """What Spark registers under the name `kohort`."""

except ImportError:  # the extra kohort[spark] is not installed
    pass
