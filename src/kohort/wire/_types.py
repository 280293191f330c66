"""Types shared by the codec and the message classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Anything that can be read as bytes without a copy."""

Records: TypeAlias = bytes | bytearray | memoryview | Sequence[bytes | bytearray | memoryview]
"""Record batches: one buffer or several in order. Decoding always gives one `memoryview`."""
