"""The compiled codecs and the generated ones they leave things to: one and the same on the wire."""

from __future__ import annotations

import random
import sys
from typing import Any, NoReturn

import pytest

from kohort import wire
from kohort.errors import DecodeError, ProtocolError
from kohort.wire import Message, _frames, message_class
from kohort.wire import _schema as schema
from kohort.wire._codec import generated_decoder, generated_encoder
from tests.wire.test_fuzz import has_nan, mutated
from tests.wire.values import ALL_NAMES, Maker, every_version

compiled = pytest.importorskip("kohort.wire._compiled", reason="built without compiled codecs")
LEFT, MOST = 100_000, 64


def refused() -> NoReturn:
    raise AssertionError("the machine left an ordinary message to the generated codec")


def layout(cls: type[Message], version: int) -> Any:
    return compiled.layout_of(schema.load(cls.NAME), sys.modules[cls.__module__], version)


def both(cls: type[Message], version: int, generate: Any) -> tuple[Any, Any]:
    facts = layout(cls, version)
    encoder = compiled.Encoder(cls, version, facts, generate)
    return encoder, compiled.Decoder(cls, facts, generate)


def written(encoder: Any, message: Message) -> tuple[bytes, list[int]]:
    out: list[Any] = []
    large: list[int] = []
    encoder(message, out, large)
    return b"".join(out), [len(out[index]) for index in large]


def read(decoder: Any, cls: type[Message], data: bytes) -> Any:
    """What a decoder makes of the data: a message and where it ends, or an error's text."""
    memory = memoryview(data) if cls.HAS_RECORDS else None
    try:
        return decoder(data, memory, 0, len(data), LEFT, MOST)
    except DecodeError as error:
        return str(error)
    except Exception as error:
        return type(error)


@pytest.mark.rows(32)
@pytest.mark.parametrize("name", ALL_NAMES)
def test_ordinary_messages_are_the_machines_alone(name: str) -> None:
    cls = message_class(name)
    for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
        encoder, decoder = both(cls, version, refused)
        for seed in range(5):
            message = Maker(seed).message(cls, version)
            data, large = written(encoder, message)
            assert (data, large) == written(generated_encoder(cls, version), message)
            again, end = read(decoder, cls, data)
            assert end == len(data)
            assert again == message
            assert again == read(generated_decoder(cls, version, view=False), cls, data)[0]


@pytest.mark.rows(32)
@pytest.mark.parametrize("name", ALL_NAMES)
def test_damaged_messages_come_to_the_same(name: str) -> None:
    cls = message_class(name)
    for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
        generated = generated_decoder(cls, version, view=False)
        decoder = both(cls, version, lambda made=generated: made)[1]
        unexplained = both(cls, version, lambda: lambda *_: "refused")[1]
        data, _ = written(
            generated_encoder(cls, version), Maker(version, unknown=True).message(cls, version)
        )
        pick = random.Random(f"{name} {version}")
        for _ in range(60):
            wounded = mutated(data, pick)
            mine, theirs = read(decoder, cls, wounded), read(generated, cls, wounded)
            assert mine == theirs or has_nan(mine[0])
            if read(unexplained, cls, wounded) == "refused":
                beyond = not isinstance(theirs, tuple) or theirs[1] > len(wounded)
                assert beyond, "refused what the other takes"


def test_what_does_not_fit_is_explained_by_the_generated_encoder() -> None:
    cls = message_class("HeartbeatRequest")
    encoder = both(cls, 4, lambda: generated_encoder(cls, 4))[0]
    for values in ({"generation_id": 1 << 31}, {"generation_id": 1.5}, {"group_id": None}):
        with pytest.raises(Exception, match=r".") as mine:
            written(encoder, cls(**values))
        with pytest.raises(Exception, match=r".") as theirs:
            written(generated_encoder(cls, 4), cls(**values))
        assert (mine.type, str(mine.value)) == (theirs.type, str(theirs.value))


def test_frames_are_the_careful_ways_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads and bodies of requests, whole responses: with the short cuts and without."""
    seen = []
    for quick in (True, False):
        if not quick:
            monkeypatch.setattr(_frames, "machine", None)
        pick = random.Random(5)
        for cls, version in every_version():
            message = Maker(1, unknown=True).message(cls, version)
            client = pick.choice((None, "", "tester", "ß" * 200))
            if cls.NAME.endswith("Request"):
                frame = b"".join(wire.encode_request(message, version, 5, client))[4:]
                for each in (frame, *(mutated(frame, pick) for _ in range(20))):
                    seen.append((quick, outcome(each)))
            elif cls.NAME.endswith("Response"):
                parts = wire.encode_response(message, version, -7)
                seen.append((quick, [bytes(part) for part in parts]))
    half = len(seen) // 2
    for (_, mine), (_, theirs) in zip(seen[:half], seen[half:], strict=True):
        assert mine == theirs or "nan" in repr(mine)


def outcome(frame: bytes) -> Any:
    """What a server makes of a request's frame."""
    try:
        return wire.decode_request(frame)
    except ProtocolError as error:
        return type(error), str(error)


def test_a_constant_message_is_encoded_once_a_version() -> None:
    cls = message_class("HeartbeatResponse")
    plain, message = cls(), wire.constant(cls())
    for _ in range(3):
        for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
            for correlation_id in (1, -5):
                mine = wire.encode_response(message, version, correlation_id)
                assert mine == wire.encode_response(plain, version, correlation_id)
