"""What a call is given by mistake is told as such, before anything is changed."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from kohort import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    RebalanceListener,
)
from kohort.acl import AclFilter
from kohort.client.admin.types import ProducerDescription
from kohort.client.cluster.client import ANY, Versioned
from kohort.client.common.types import GroupMetadata
from kohort.errors import EncodeError, KohortError, UsageError
from kohort.testing import Cluster
from kohort.wire.messages.metadata_request import MetadataRequest
from kohort.wire.messages.metadata_response import MetadataResponse
from tests.known import fake, known


class Deaf:
    """A listener that does not know of losses."""

    def on_partitions_revoked(self, partitions: object) -> None: ...
    def on_partitions_assigned(self, partitions: object) -> None: ...


class Later(RebalanceListener):
    """A listener that would have to be awaited."""

    async def on_partitions_revoked(self, partitions: object) -> None: ...


def test_one_text_is_no_list_of_names() -> None:
    """`create_topics("abc")` made topics a, b and c; `delete_topics` deleted them."""
    with Cluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        calls = (
            admin.create_topics,
            admin.delete_topics,
            admin.describe_topics,
            admin.describe_groups,
            admin.delete_groups,
            admin.describe_transactions,
            admin.describe_users,
        )
        for call in calls:
            with pytest.raises(UsageError, match=rf"write {call.__name__}\(\['abc'\]\)"):
                call("abc")
        assert admin.list_topics() == []
        with pytest.raises(UsageError, match="'lates': a time in milliseconds, or latest"):
            admin.list_offsets({("t", 0): "lates"})  # pyright: ignore


def test_what_is_no_partition() -> None:
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
        for wrong in ("orders", ["orders"], [("orders",)]):
            with pytest.raises(UsageError, match="assign\\(\\) takes partitions, not"):
                consumer.assign(fake(wrong))
        with pytest.raises(UsageError, match="commit\\(\\) takes offsets by partition"):
            consumer.commit([("orders", 0)])  # pyright: ignore


@pytest.mark.parametrize("keys", [[b"k"], [b"k"] * 3])
def test_keys_and_values_that_do_not_pair(keys: list[bytes]) -> None:
    """Keys too many were passed over in silence; too few were an IndexError."""
    message = f"2 values and {len(keys)} keys"
    with Producer(bootstrap_servers="127.0.0.1:1") as to, pytest.raises(UsageError, match=message):
        to.send_many("t", [b"a", b"b"], keys)


WRONG: dict[str, tuple[Any, ...]] = {
    "seconds": ("1", b"1", True, math.nan, [], {}, object()),
    "whole": ("1", b"1", True, 1.5, math.nan, math.inf, 1 << 70, [], {}, object()),
    "pattern": (5, 1.5, True, b"t", ["t"], None, object()),
    "text": ("", 5, 1.5, True, b"t", ["t"], None, object()),
    "names": (None, 5, True, b"t", "t", [None], [5], [b"t"], [""], object()),
    "partition": (
        None,
        5,
        True,
        "t",
        b"t",
        ["t"],
        ("t",),
        ("t", "0"),
        ("t", 0.5),
        ("t", True),
        ("t", -1),
        ("t", 1 << 40),
        (5, 0),
        ("", 0),
        ("t", 0, 0),
        {},
        object(),
    ),
    "partitions": (None, 5, True, "t", b"t", ["t"], [("t",)], [None], [("t", -1)], ("t", 0)),
    "offsets": (
        5,
        True,
        "t",
        [("t", 0)],
        {"t": 0},
        {("t", "0"): 0},
        {5: 5},
        {("t", 0): "5"},
        {("t", 0): 1.5},
        {("t", 0): None},
        {("t", 0): -5},
        {("t", 0): True},
        {("t", 0): 1 << 70},
        {("t", 0): OffsetAndMetadata(1, fake(5))},
        {("t", 0): OffsetAndMetadata(1, "", fake("0"))},
    ),
    "times": (5, "t", [("t", 0)], {"t": 0}, {("t", 0): "5"}, {("t", 0): 1.5}, {("t", 0): None}),
    "callback": (5, "x", [], object()),
    "listener": (5, "x", object(), Deaf(), Later()),
    "topics": (None, 5, True, b"t", "t", [], [None], [5], ["a b"], [b"t"]),
    "columns": (None, 5, "no_such", ["no_such"], [5]),
    "values": (None, 5, "v", b"v", iter([b"v"]), {b"v": 1}, [5], ["v"]),
    "bytes": (5, 1.5, "v", [], {}, object()),
    "headers": (
        None,
        5,
        "ab",
        b"ab",
        {"a": b"1"},
        ["ab"],
        [("a",)],
        [("a", "1")],
        [(b"a", b"1")],
        [1],
        [("a", b"1", 2)],
        [("a", 5)],
    ),
    "arrow": (None, 5, [1], {"value": [b"v"]}),
    "texts": (None, 5, "t", [("a", "b")], {5: "b"}, {"a": 5}),
    "numbers": (None, 5, "t", {"a": "b"}, {5: 1.0}, {"a": True}),
    "counts": (None, 5, "t", ["t"], {"t": "5"}, {"t": 0}, {"t": 1.5}, {5: 5}),
    "place": ("lates", None, 1.5, True, [], b"latest"),
    "places": (None, 5, ["t"], {"t": "latest"}, {("t", 0): "lates"}, {("t", 0): None}),
    "firsts": (None, 5, [("t", 0)], {("t", 0): "1"}, {("t", 0): -2}, {"t": 1}),
    "a producer": (None, 5, "p", 7),
    "member": (None, 5, "g", ("g", 1, "m", None)),
    "new topics": (None, 5, "t", [None], [5], [NewTopic("t", "3")], [NewTopic("t", 1, 1.5)]),  # pyright: ignore
    "brokers": (5, "1", ["1"], [None]),
    "acls": (None, 5, "a", [None], ["a"]),
    "filter": (None, 5, "a", {}),
    "switch": (),
    "choice": ("uncleen", None, 5, True),
    "ids": (None, 5, "5", ["5"], [1.5]),
}
"""By what a parameter is: what it is not."""

NONE_IS_FINE = {"offsets", "callback", "listener", "timeout", "timeout_s", "keys"}

IS: dict[str, str] = {
    "timeout": "seconds",
    "timeout_s": "seconds",
    "max_records": "whole",
    "max_rows": "whole",
    "end_offset": "whole",
    "last": "whole",
    "iterations": "whole",
    "timestamp_ms": "whole",
    "topic": "text",
    "name": "text",
    "group_id": "text",
    "user": "text",
    "password": "text",
    "names": "names",
    "group_ids": "names",
    "instance_ids": "names",
    "reason": "text",
    "transactional_ids": "names",
    "users": "names",
    "partition": "partition",
    "partitions": "partitions",
    "offsets": "offsets",
    "times": "times",
    "callback": "callback",
    "listener": "listener",
    "topics": "topics",
    "columns": "columns",
    "values": "values",
    "keys": "values",
    "value": "bytes",
    "key": "bytes",
    "headers": "headers",
    "data": "arrow",
    "changes": "texts",
    "filters": "texts",
    "entity": "texts",
    "counts": "counts",
    "to": "place",
    "wanted": "places",
    "before": "firsts",
    "group_metadata": "member",
    "producer": "a producer",
    "brokers": "brokers",
    "acls": "acls",
    "partial": "switch",
    "broker": "switch",
    "include_internal": "switch",
    "validate_only": "switch",
    "strict": "switch",
    "isolation_level": "choice",
    "kind": "choice",
    "states": "names",
    "mechanisms": "names",
    "producer_ids": "ids",
    "longer_than_ms": "whole",
    "pattern": "pattern",
    "offset": "whole",
}
OTHERWISE = {
    ("Producer", "send", "partition"): "whole",
    ("Producer", "send_many", "partition"): "whole",
    ("Producer", "produce_arrow", "partition"): "whole",
    ("Admin", "create_topics", "topics"): "new topics",
    ("Admin", "alter_quotas", "changes"): "numbers",
    ("Admin", "delete_acls", "acl_filter"): "filter",
    ("Admin", "describe_acls", "acl_filter"): "filter",
}
RIGHT: dict[str, Any] = {
    "seconds": 0.2,
    "whole": 1,
    "text": "t",
    "names": ["t"],
    "partition": ("t", 0),
    "partitions": [("t", 0)],
    "offsets": {("t", 0): 0},
    "times": {("t", 0): 0},
    "topics": ["t"],
    "values": [b"v"],
    "bytes": b"v",
    "headers": [],
    "arrow": pa.record_batch({"value": [b"v"]}),
    "texts": {"retention.ms": "1000"},
    "numbers": {"producer_byte_rate": 1.0},
    "counts": {"t": 2},
    "place": "latest",
    "places": {("t", 0): "latest"},
    "firsts": {("t", 0): 0},
    "member": GroupMetadata("g", -1, "", None),
    "new topics": ["u"],
    "a producer": ProducerDescription(1, 0, 0, 0, 0, 0),
    "filter": AclFilter(),
    "acls": [],
}
UNHARMED = {"metrics", "close", "run"}
FACES = {
    "Consumer": (Consumer, AsyncConsumer),
    "Producer": (Producer, AsyncProducer),
    "Admin": (Admin, AsyncAdmin),
}


def kind_of(face: str, call: str, parameter: inspect.Parameter) -> str:
    """What a parameter is. A new one has to be entered above, with what is wrong for it."""
    named = OTHERWISE.get((face, call, parameter.name))
    return named or IS[parameter.name]


def wrong_calls(face: str, client: Any) -> Iterator[tuple[str, str, list[Any], dict[str, Any]]]:
    for call in dir(client):
        if call.startswith("_") or call in UNHARMED:
            continue
        if not callable(getattr(FACES[face][0], call, None)):
            continue
        parameters = list(inspect.signature(getattr(client, call)).parameters.values())
        for one in parameters:
            several = one.kind is one.VAR_POSITIONAL
            for wrong in WRONG["partition" if several else kind_of(face, call, one)]:
                if isinstance(wrong, Later) and isinstance(client, AsyncConsumer):
                    continue
                if wrong is None and (one.default is None or one.name in NONE_IS_FINE):
                    continue
                if several:
                    yield call, one.name, [wrong], {}
                    continue
                keywords = {
                    other.name: RIGHT[kind_of(face, call, other)]
                    for other in parameters
                    if other.default is other.empty and other.kind is not other.VAR_POSITIONAL
                }
                yield call, one.name, [], {**keywords, one.name: wrong}


def refused(done: Callable[[], Any]) -> str:
    """What the call is told; "" when it takes what it was given."""
    try:
        done()
    except TypeError as error:
        message = str(error)
        clear = "Kafka keeps bytes" in message or "bytes-like" in message or "unhashable" in message
        return message if clear else f"UNCLEAR {error!r}"
    except KohortError as error:
        return str(error) if isinstance(error, UsageError) else f"UNCLEAR {error!r}"
    except Exception as error:
        return f"UNCLEAR {error!r}"
    return ""


@pytest.mark.parametrize("tasks", [False, True])
@pytest.mark.parametrize("face", FACES)
def test_every_parameter_of_every_call(
    face: str, tasks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused in words, by UsageError or TypeError, before anything changes; what is sent works.

    A topic that was no text left a producer without metadata, for good; a group's metadata that was
    none, an offset of 1.5 or a bound of "x" came to light on the network thread, where nobody is
    told.
    """
    missed: list[str] = []
    settings = {"transactional_id": "given"} if face == "Producer" else {}
    if face == "Consumer":
        settings = {"group_id": "given", "enable_auto_commit": False}
    with (
        Cluster(group_initial_rebalance_delay_ms=0) as cluster,
        asyncio.Runner() as runner,
        ExitStack() as held,
    ):
        cluster.create_topic("t", partitions=1)
        client = FACES[face][tasks](bootstrap_servers=cluster.bootstrap, **settings)
        held.callback(lambda: settle(client.close()))

        def settle(made: Any) -> Any:
            return runner.run(awaited(made)) if inspect.isawaitable(made) else made

        if face == "Consumer":
            settle(client.assign([("t", 0)]))
            settle(client.position(("t", 0), 20))
        if face == "Producer":
            settle(client.init_transactions())
            settle(client.begin_transaction())
            settle(settle(client.send("t", b"first")))
        before = state_of(client)
        for call, name, args, keywords in wrong_calls(face, client):
            made = getattr(client, call)
            message = refused(lambda: settle(made(*args, **keywords)))  # noqa: B023
            if not message or message.startswith("UNCLEAR"):
                missed.append(f"{call}({name}={(args or [keywords.get(name)])[0]!r}): {message}")
            assert state_of(client) == before, (call, name, keywords)
        assert not missed, "\n".join(missed)
        assert "raised" not in caplog.text  # nothing has come to light on the network thread
        if face == "Producer":
            settle(client.commit_transaction())
        elif face == "Admin":
            assert [each.name for each in settle(client.list_topics())] == ["t"]
        else:
            settle(client.commit())


async def awaited(made: Awaitable[Any]) -> Any:
    return await made


def state_of(client: Any) -> object:
    """What a wrong call could have changed."""
    if isinstance(client, Consumer | AsyncConsumer):
        bounds = [p.end for p in client._core.positions]
        return client.positions(), client.paused(), client.subscription(), bounds
    if isinstance(client, Producer | AsyncProducer):
        return client._core._topics, known(client._core.transactional).is_open
    return None


def test_a_request_that_cannot_be_written_fails_and_holds_up_nothing() -> None:
    """It stood among those in flight, so that the answers behind it were taken for another's."""
    with Cluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.list_topics()
        broken = Versioned(MetadataRequest, lambda version: [][version])
        with pytest.raises(EncodeError, match="a MetadataRequest cannot be written"):
            admin._ask(MetadataResponse, ANY, broken, admin._deadline(5))
        assert admin.list_topics() == []


@pytest.mark.parametrize("tasks", [False, True])
def test_what_subscribe_and_commit_async_are_given(tasks: bool) -> None:
    """On a consumer that may subscribe, so that nothing else refuses; an empty set stays empty."""

    class Whole(RebalanceListener):
        async def on_partitions_assigned(self, partitions: object) -> None: ...

    async def awaiting(offsets: object, error: object) -> None: ...

    later = fake(awaiting)
    with asyncio.Runner() as runner:
        face = AsyncConsumer if tasks else Consumer
        consumer = face(bootstrap_servers="127.0.0.1:1", group_id="g")

        def call(topics: Any, listener: Any) -> None:
            made = consumer.subscribe(topics, listener)
            if made is not None:
                runner.run(awaited(made))

        for topics in WRONG["topics"]:
            with pytest.raises(UsageError):
                call(topics, None)
        for listener, message in ((5, "no method"), (Deaf(), "no method on_partitions_lost")):
            with pytest.raises(UsageError, match=message):
                call(["t"], listener)
        assert consumer.subscription() == frozenset()
        if tasks:
            call(["t"], Whole())
            consumer.commit_async({("t", 0): 1}, later)
            runner.run(awaited(fake(consumer.close(0))))
            return
        with pytest.raises(UsageError, match="on_partitions_assigned is a coroutine function"):
            call(["t"], Whole())
        with pytest.raises(
            UsageError, match=r"callback of commit_async\(\) is a coroutine function"
        ):
            consumer.commit_async({("t", 0): 1}, later)
        consumer.close(0)
