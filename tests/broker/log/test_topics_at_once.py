"""Many topics in one request are written at once: a broker that flushes for each stands still,
and no member of any group is heard meanwhile."""

from __future__ import annotations

import errno

import pytest

from kohort.broker.log.directory import DataDirectory
from kohort.broker.state.topics import NewTopic
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from kohort.wire.messages.create_topics_response import CreateTopicsResponse
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeleteTopicsResponse
from tests.broker.harness import FakeEnv, Harness, batch_of
from tests.broker.log.test_full_disk import SmallDisk

ZERO = bytes(16)


class Counted:
    """A broker, and how often it wrote `topics.json`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes = 0
        self.fails = False
        write = DataDirectory.save

        def save(directory: DataDirectory, *, frees: bool = False) -> None:
            self.writes += 1
            if self.fails:
                raise OSError(errno.EIO, "Input/output error")
            write(directory, frees=frees)

        monkeypatch.setattr(DataDirectory, "save", save)
        self.harness = Harness(SmallDisk(), FakeEnv(), durability="os")
        self.writes = 0

    def create(self, *names: str) -> dict[str, int]:
        topics = [CreatableTopic(name=n, num_partitions=1, replication_factor=-1) for n in names]
        answer = self.harness.ask(CreateTopicsRequest(topics=topics), CreateTopicsResponse)
        return {t.name: t.error_code for t in answer.topics}

    def delete(self, *states: DeleteTopicState) -> list[int]:
        asked = DeleteTopicsRequest(topics=list(states))
        return [r.error_code for r in self.harness.ask(asked, DeleteTopicsResponse).responses]

    def names(self) -> list[str]:
        return [topic.name for topic in self.harness.state.topics]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def named(name: str) -> DeleteTopicState:
    return DeleteTopicState(name=name, topic_id=ZERO)


def test_all_that_can_be_made_are_made_in_one_write(broker: Counted) -> None:
    some = [f"t{n}" for n in range(20)]
    codes = broker.create(*some, "bad name", "a.b", "a_b", "twice", "twice")
    refused = {name: code for name, code in codes.items() if code}
    assert refused == {
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,  # of this request's own "a.b"
        "twice": ErrorCode.INVALID_REQUEST,
    }
    assert list(codes) == [*some, "bad name", "a.b", "a_b", "twice"], "in the order asked for"
    assert broker.names() == [*some, "a.b"]
    assert broker.writes == 1
    again = broker.harness.restarted(clean=False)
    assert [topic.name for topic in again.state.topics] == [*some, "a.b"]


def test_limits_hold_within_a_request_and_not_for_the_brokers_own_topics() -> None:
    """A broker with as many topics as it may have coordinates groups all the same."""
    harness = Harness(durability="memory", max_topics=3, max_partitions=7)
    harness.create("first", 3)
    topics = harness.state.topics
    made = topics.create_all([NewTopic("a", 4, {}), NewTopic("b", 1, {}), NewTopic("c", 5, {})])
    assert [isinstance(result, BrokerError) for result in made] == [False, True, True]
    topics.delete(topics.get("a") or pytest.fail("it is not there"))
    topics.add_partitions(topics.get("first") or pytest.fail("it is not there"), 6)
    made = topics.create_all([NewTopic("b", 2, {}), NewTopic("c", 1, {})])
    assert [isinstance(result, BrokerError) for result in made] == [True, False]
    with pytest.raises(BrokerError, match="at most 3 topics"):
        topics.check_new("d", 1, {})
    assert len(harness.state.offsets_topic().partitions) > 0


def test_none_is_made_when_the_write_fails(broker: Counted) -> None:
    broker.fails = True
    assert set(broker.create("a", "b").values()) == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert broker.names() == []
    broker.fails = False
    assert set(broker.create("a", "b").values()) == {0}


def test_many_are_deleted_in_two_writes(broker: Counted) -> None:
    """One before their records go, one after."""
    some = [f"t{n}" for n in range(20)]
    broker.create(*some, "kept")
    assert broker.harness.produce("t3", batch_of([b"v"])).error_code == 0
    by_id = broker.harness.state.topics.get("t0")
    assert by_id is not None
    broker.writes = 0
    codes = broker.delete(
        *map(named, some), named("strange"), DeleteTopicState(name=None, topic_id=by_id.topic_id)
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [0] * 20 + [unknown, ErrorCode.INVALID_REQUEST]
    assert broker.names() == ["kept"]
    assert broker.writes == 2
    assert not any(name.startswith("t3-") for name in broker.harness.files.list(""))


def test_none_is_deleted_when_the_write_fails(broker: Counted) -> None:
    broker.create("a", "b")
    broker.fails = True
    assert broker.delete(named("a"), named("b")) == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    broker.fails = False
    assert sorted(broker.names()) == ["a", "b"]
    assert broker.delete(named("a"), named("b")) == [0, 0]
