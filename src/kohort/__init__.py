"""Kohort: Kafka consumer groups for Python and Spark."""

__version__ = "0.1.0"
