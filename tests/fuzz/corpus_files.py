"""What a fuzzer starts from: files in `corpus/TARGET`, and sound inputs that are made.

Shell: files.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

from kohort.records import Compression, compress
from kohort.wire import encode, encode_request, message_class
from tests.broker.harness import batch_of, produce_request
from tests.broker.hostile_batches import hostile_batch
from tests.wire.values import ALL_NAMES, Maker

CORPUS = Path(__file__).parent / "corpus"


def corpus(name: str) -> list[bytes]:
    """The files of a target, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def write(directory: Path, prefix: str, data: bytes) -> Path:
    """Write an input under a name made of its bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(data).hexdigest()[:12]
    path = directory / (f"{prefix}-{digest}" if prefix else digest)
    path.write_bytes(data)
    return path


def _batches() -> list[bytes]:
    pick = random.Random(1)
    found = [
        bytes(batch_of([b"v" * size] * count, 1_000, compression=codec))
        for codec in Compression
        for size, count in ((0, 1), (20, 3), (500, 2))
    ]
    found += [hostile_batch(pick) for _ in range(60)]
    return [*found, b"".join(found[:4]), b"".join(found[3:8])[:-7]]


def _compressed() -> list[bytes]:
    texts = (b"", b"a" * 1_000, bytes(range(256)) * 4, b"kohort " * 200)
    return [
        bytes([codec]) + bytes(compress(codec, text)) for codec in Compression for text in texts
    ]


def _messages() -> list[bytes]:
    found: list[bytes] = []
    for number, name in enumerate(ALL_NAMES):
        cls = message_class(name)
        for version in {cls.MIN_VERSION, cls.MAX_VERSION}:
            body = encode(Maker(number, unknown=True).message(cls, version), version)
            found.append(number.to_bytes(2, "big") + bytes([version - cls.MIN_VERSION]) + body)
    return found


def _requests() -> list[bytes]:
    found: list[bytes] = []
    for number, name in enumerate(n for n in ALL_NAMES if n.endswith("Request")):
        cls = message_class(name)
        for version in {cls.MIN_VERSION, cls.MAX_VERSION}:
            request = Maker(number, unknown=True).message(cls, version)
            found.append(b"".join(encode_request(request, version, number, "c"))[4:])
    for version in (3, 9, 12):
        messages = [produce_request("t", batch) for batch in _batches()[:20]]
        found += [b"".join(encode_request(m, version, 1, "c"))[4:] for m in messages]
    return found


SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "records": _batches,
    "columns": _batches,
    "produced": _batches,
    "resealed": _batches,
    "compressed": _compressed,
    "messages": _messages,
    "requests": _requests,
    "broker": _requests,
}


def seeds(name: str) -> list[bytes]:
    """Sound inputs of a target, and hostile ones that once were of use."""
    return SEEDS[name]()
