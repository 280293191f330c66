"""What tests of users need: an embedded broker."""

from kohort.testing.cluster import Cluster

__all__ = ["Cluster"]
