"""Nobody learns from a login who exists: what is shown for other names looks like what is shown for
users, and stays the same (issue F.10)."""

from __future__ import annotations

import os
import uuid
from base64 import b64decode
from collections import Counter
from collections.abc import Callable

import pytest

from kohort.broker.base.config import BrokerConfig
from kohort.broker.log.directory import DataDirectory
from kohort.broker.log.files import MemoryFiles
from kohort.broker.security.authentication import Authenticator
from kohort.broker.security.users import Users
from kohort.sasl import scram
from kohort.sasl.scram import HASHES, ScramCredential

CONFIG = BrokerConfig(
    durability="memory", security_protocol="SASL_PLAINTEXT", sasl_enabled_mechanisms=tuple(HASHES)
)
NAMES = [f"name-{number}" for number in range(300)]
Shown = tuple[bytes, int]


class Broker:
    """A broker's users, as whoever logs in sees them."""

    def __init__(self, files: MemoryFiles, logins: tuple[str, ...] = ("root:secret",)) -> None:
        directory = DataDirectory.open(files, "cluster", durable=True)
        self.users = Users(directory, lambda: uuid.uuid4().bytes)
        self.users.ensure(logins)
        self.login = Authenticator(CONFIG, lambda: self.users, None, lambda: os.urandom(16))

    def shown(self, user: str, mechanism: str = "SCRAM-SHA-512") -> Shown:
        """Salt and iterations, which a client is told before it proves anything."""
        step = self.login.exchange(mechanism, 0).evaluate(f"n,,n={user},r=abc".encode())
        fields = dict(part.split("=", 1) for part in step.data.decode().split(","))
        return b64decode(fields["s"]), int(fields["i"])


def java_salt() -> bytes:
    """As Apache Kafka's admin client makes them: 130 bits in base 36."""
    number, digits = int.from_bytes(os.urandom(17)) % (1 << 130), ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.encode()


def upsert(broker: Broker, user: str, salt: Callable[[], bytes], iterations: int) -> None:
    for mechanism in HASHES:
        made = ScramCredential(salt(), b"k" * 32, b"k" * 32, iterations)
        broker.users.alter(user, mechanism, made)


def kind(shown: Shown) -> tuple[str, int]:
    salt, iterations = shown
    text = all(char in b"0123456789abcdefghijklmnopqrstuvwxyz" for char in salt)
    return ("text" if text else f"{len(salt)} bytes"), iterations


@pytest.mark.parametrize("mechanism", sorted(HASHES))
def test_one_kind_of_user_is_the_one_kind_of_decoy(mechanism: str) -> None:
    broker = Broker(MemoryFiles(), ("root:secret", "ann:secret"))
    users = {kind(broker.shown(user, mechanism)) for user in ("root", "ann")}
    assert {kind(broker.shown(name, mechanism)) for name in NAMES} == users


def test_no_bit_of_a_salt_tells_a_user_from_a_decoy() -> None:
    """The salts of users were UUIDs, six bits of which are always the same."""
    # Several, because one random salt in 64 looks like a UUID, and decoys then do as well.
    broker = Broker(MemoryFiles(), tuple(f"own-{n}:x" for n in range(8)))
    users = [broker.users._made("SCRAM-SHA-256", "x").salt for _ in range(40)]
    decoys = [broker.shown(name)[0] for name in NAMES[:40]]
    for salts in (users, decoys):
        for bit in range(128):
            assert len({salt[bit // 8] >> bit % 8 & 1 for salt in salts}) == 2


def test_decoys_are_drawn_from_the_kinds_of_users_there_are() -> None:
    """Made by Apache Kafka's tools, by librdkafka and by this broker, with their iterations."""
    broker = Broker(MemoryFiles(), tuple(f"own-{n}:x" for n in range(2)))
    for number in range(12):
        upsert(broker, f"java-{number}", java_salt, 8_192)
    for number in range(6):
        upsert(broker, f"librdkafka-{number}", lambda: os.urandom(64), 10_000)
    users = Counter(kind(broker.shown(user)) for user in broker.users.names())
    decoys = Counter(kind(broker.shown(name)) for name in NAMES)
    assert decoys.keys() == users.keys()
    for each, count in users.items():
        share, mine = count / users.total(), decoys[each] / decoys.total()
        assert share / 3 < mine < share * 3, each  # salts are random: four sigma of 300 names
    sizes = {len(broker.shown(name)[0]) for name in NAMES if kind(broker.shown(name))[0] == "text"}
    assert sizes <= set(range(20, 27)), "26 digits, fewer where the first are zeros"


def test_asked_by_both_mechanisms_decoys_agree_as_users_do() -> None:
    broker = Broker(MemoryFiles())
    upsert(broker, "java", java_salt, 8_192)
    for name in [*broker.users.names(), *NAMES]:
        one, other = (broker.shown(name, mechanism) for mechanism in sorted(HASHES))
        assert kind(one) == kind(other)
        assert one[0] != other[0]


def test_a_user_of_one_mechanism_shows_no_seam_in_the_other() -> None:
    broker = Broker(MemoryFiles())
    made = ScramCredential(java_salt(), b"k" * 64, b"k" * 64, 8_192)
    broker.users.alter("half", "SCRAM-SHA-512", made)
    assert kind(broker.shown("half", "SCRAM-SHA-256")) == kind(broker.shown("half"))
    assert broker.shown("half", "SCRAM-SHA-256")[0] != made.salt


def test_a_name_is_shown_the_same_in_every_attempt_and_after_restarts() -> None:
    files = MemoryFiles()
    first = Broker(files)
    upsert(first, "java", java_salt, 8_192)
    seen = {name: first.shown(name) for name in [*NAMES, "java"]}
    assert {name: first.shown(name) for name in seen} == seen
    second = Broker(files)
    assert {name: second.shown(name) for name in seen} == seen
    assert len({salt for salt, _ in seen.values()}) == len(seen)


def test_a_new_user_of_a_known_kind_moves_few_decoys() -> None:
    broker = Broker(MemoryFiles(), tuple(f"own-{n}:x" for n in range(2)))
    for number in range(10):
        upsert(broker, f"java-{number}", java_salt, 8_192)
    before = {name: broker.shown(name) for name in NAMES}
    upsert(broker, "one-more", java_salt, 8_192)
    moved = sum(broker.shown(name) != shown for name, shown in before.items())
    assert moved < len(NAMES) / 20


def test_a_password_is_verified_by_as_much_work_for_names_that_do_not_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PLAIN: the time that it takes would tell who exists."""
    broker = Broker(MemoryFiles())
    work: list[tuple[str, int]] = []

    def counted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
        work.append((mechanism, iterations))
        return b"x" * 64

    monkeypatch.setattr(scram, "salted_password", counted)
    for name in ("root", "nobody"):
        assert not broker.users.verify(name, "wrong")
    assert len(set(work)) == 1
    assert len(work) == 2
