"""Whole systems whose processes change from one release to another; what the older one writes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kohort.broker.apis.api_versions import _answer
from kohort.broker.base.config import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, BrokerConfig
from kohort.broker.coordinator.shard_host import build_batch
from kohort.broker.log.directory import CLEAN_MARKER, TOPICS_FILE, Registry
from kohort.broker.log.producers import Producers
from kohort.errors import StorageError
from kohort.group.coordinator.state import classic_records
from kohort.group.coordinator.state.classic_records import (
    NO_EXPIRY,
    StoredGroup,
    StoredMember,
    StoredOffset,
    group_record,
    offset_record,
    offset_tombstone,
)
from kohort.group.coordinator.state.effects import GroupRecord, Producer
from kohort.records import BatchHeader
from kohort.simulator.schedule import Schedule
from kohort.simulator.system.network import Network
from kohort.simulator.system.plan import UPGRADE, SystemPlan, plan_of
from kohort.simulator.system.process import BrokerProcess
from kohort.simulator.system.releases import (
    CHANGES,
    NO_APIS,
    NOW,
    OLDER_FILES,
    OLDER_VALUES,
    RETENTION_MS,
    Release,
    lowered,
    older_file,
    older_group_record,
    older_transaction_record,
    release_before,
    value_name,
)
from kohort.simulator.system.running import Coverage
from kohort.simulator.system.world import SystemWorld, run
from kohort.transactions import records as transaction_records
from kohort.transactions.records import KIP_890, Transaction, transaction_record
from kohort.transactions.states import TransactionState
from kohort.wire import decode, encode
from kohort.wire.messages.api_versions_response import ApiVersionsResponse

PRODUCE, LIST_OFFSETS, END_TXN = 0, 2, 26
END_TXN_NOW = 5
P0 = ("input", 0)
OFFSET = StoredOffset(7, 3, "note", 1_000)
GROUP = StoredGroup(
    "consumer", 4, "range", "m", 900, {"m": StoredMember("m", "i", "c", "/h", 60, 30, b"s", b"a")}
)


# -- whole systems


@pytest.mark.rows(2)
@pytest.mark.parametrize("protocol", ["classic", "mixed"])
def test_upgrades_both_ways_are_survived(protocol: str) -> None:
    """Forth and back, the broker and the clients: all promises hold."""
    programs = tuple((name, 1) for name in ("load", "transact", "move", "read", "book", "watch"))
    plan = SystemPlan(3, programs, (UPGRADE,), 12, 12_000, 2, 2, protocol, "fsync")
    world = SystemWorld(plan)
    outcome = world.run()
    assert not outcome.failed, outcome.what
    assert all(outcome.reached[change] for change in CHANGES), outcome.reached
    assert outcome.reached["wrote TransactionLogValue v0"]
    assert all(outcome.reached[f"wrote {name}"] for name in OLDER_FILES), outcome.reached
    assert world.broker.release is NOW, "an upgrade that has begun comes to its end"


def test_retries_work_over_a_broker_without_a_largest_timestamp() -> None:
    """Kafka before 3.0 (KIP-734): retries were held back for ever where it refused to answer."""
    programs = (("load", 1), ("book", 1))
    outcome = run(SystemPlan(7, programs, (UPGRADE,), 0, 2_000, 1, 2, "classic", "fsync"))
    assert not outcome.failed, outcome.what


def test_without_upgrades_a_plan_is_of_this_release() -> None:
    outcome = run(SystemPlan(3, (("move", 1), ("load", 1)), (), 0, 1_500, 1, 1, "classic", "os"))
    assert not outcome.failed, outcome.what
    assert not [name for name in outcome.reached if name.startswith(("wrote", "broker"))]


def test_a_third_of_the_plans_upgrade() -> None:
    drawn = [plan_of(seed) for seed in range(300)]
    upgrading = [plan for plan in drawn if UPGRADE in plan.faults]
    assert 70 < len(upgrading) < 140
    assert all(plan.fault_count for plan in upgrading)
    smaller = upgrading[0].smaller()
    assert any(UPGRADE not in plan.faults for plan in smaller), "it can be left out"


def test_coverage_names_versions_that_nobody_wrote() -> None:
    missing = Coverage(run(replace(plan_of(2), work_ms=1_000, faults=())).reached).missing()
    assert {*CHANGES, *(f"wrote {name}" for name in (*OLDER_VALUES, *OLDER_FILES))} <= {*missing}


def test_plans_begin_with_each_older_version() -> None:
    """Their protocol allows it: consumer groups came after the oldest."""
    before = {release_before(seed, "classic").name for seed in range(60)}
    assert {"0.10.0", "2.0", "2.5 as 2.0", "2.5 as 2.1-IV0", "2.5 as 2.2"} == before
    assert {release_before(seed, "mixed").name for seed in range(60)} == {"3.9"}


def test_topics_that_are_made_again_are_known_by_id() -> None:
    """By name a producer cannot tell the two from each other."""
    for protocol in ("classic", "mixed"):
        before = release_before(1, protocol, by_id=True)
        assert not {0, 1, 3} & set(before.apis)
        assert before.apis[26] < END_TXN_NOW


# -- values


@pytest.mark.parametrize(
    ("release", "read"),
    [
        (Release("r", offsets=1), OFFSET._replace(leader_epoch=-1)),
        (
            Release("r", offsets=1, expires=True),
            OFFSET._replace(leader_epoch=-1, expire_timestamp_ms=1_000 + RETENTION_MS),
        ),
        (Release("r", offsets=2), OFFSET._replace(leader_epoch=-1)),
        (NOW, OFFSET),
    ],
)
def test_the_broker_reads_older_commits(release: Release, read: StoredOffset) -> None:
    """Versions 1 and 2 have no leader epoch, and an expiry of their own only where it is set."""
    written = older_group_record(offset_record("g", P0, OFFSET), release)
    entry = classic_records.decode_record(written, 5)
    assert isinstance(entry, classic_records.OffsetEntry)
    assert entry.value == read._replace(record_offset=5)
    assert value_name(OFFSETS_TOPIC, written) == f"OffsetCommitValue v{release.offsets}"


def test_a_commit_with_an_expiry_of_its_own_keeps_it() -> None:
    offset = OFFSET._replace(expire_timestamp_ms=2_000)
    release = Release("r", offsets=1, expires=True)
    entry = classic_records.decode_record(
        older_group_record(offset_record("g", P0, offset), release), 0
    )
    assert isinstance(entry, classic_records.OffsetEntry)
    assert entry.value is not None
    assert entry.value.expire_timestamp_ms == 2_000 != NO_EXPIRY


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_broker_reads_older_groups(version: int) -> None:
    """Without static ids; v0 also without the time to rejoin, which is then the session's."""
    written = older_group_record(group_record("g", GROUP), Release("r", groups=version))
    entry = classic_records.decode_record(written, 0)
    assert isinstance(entry, classic_records.GroupEntry)
    assert entry.value is not None
    [member] = entry.value.members.values()
    assert (member.instance_id, member.rebalance_timeout_ms) == (None, 60 if version else 30)
    assert entry.value.state_timestamp_ms == (900 if version == 2 else -1)
    assert value_name(OFFSETS_TOPIC, written) == f"GroupMetadataValue v{version}"


def test_the_broker_reads_older_transactions() -> None:
    """v0 has partitions and status; which client it was, and other producer ids, are not in it."""
    known = Transaction(
        7, 2, 60_000, TransactionState.PREPARE_COMMIT, frozenset({P0}), 5, 4, 6, 8, KIP_890
    )
    written = older_transaction_record(transaction_record("t", known), Release("r", transactions=0))
    assert transaction_records.decode_record(written) == (
        "t",
        known.but(previous_producer_id=-1, next_producer_id=-1, client_version=0),
    )
    assert value_name(TRANSACTIONS_TOPIC, written) == "TransactionLogValue v0"
    assert older_transaction_record(written, NOW) is written


def test_a_tombstone_has_no_version() -> None:
    tombstone = offset_tombstone("g", P0)
    oldest = Release("r", offsets=1, groups=0, transactions=0)
    assert older_group_record(tombstone, oldest) is tombstone
    assert older_transaction_record(GroupRecord(b"\0\0", None), oldest).value is None


def test_a_patch_keeps_apis_and_transactions() -> None:
    """A broker goes back only as docs/versioning.md allows."""
    patch = release_before(1, "classic").patch()
    assert (patch.apis, patch.transactions) == (NO_APIS, 1)


# -- files


def test_an_older_snapshot_is_not_believed() -> None:
    """Version 1 knows no open transactions: the log is read instead."""
    producers = Producers()
    batch = build_batch([GroupRecord(b"k", b"v")], Producer(5, 0), 1)
    producers.note(BatchHeader(batch, 0), 0, 1)
    assert producers.first_open == 0
    content = producers.encode()
    assert Producers().restore(content)
    older = older_file("input-0/00000000000000000009.snapshot.tmp", content)
    assert int.from_bytes(older[:2]) == 1
    assert len(content) - len(older) == 12, "an open transaction and an epoch"
    assert not Producers().restore(older)


def test_bare_topics_are_read() -> None:
    """`topics.json` as it was before groups, brokers, ACLs and quotas had a place in it."""
    registry = Registry("cluster", 1_000, nodes=[], groups={"g": {"a": "b"}})
    older = older_file(f"{TOPICS_FILE}.tmp", registry.encode())
    assert set(json.loads(older)) == {
        *("format", "cluster_id", "next_producer_id", "deleting", "groups", "topics"),
    }
    assert Registry.decode(older) == registry
    with pytest.raises(StorageError):
        Registry.decode(older.replace(b'"format": 1', b'"format": 2'))


def test_an_empty_mark_of_a_clean_shutdown_is_believed() -> None:
    """So it was before it named the segments."""
    schedule = Schedule(1)
    config = BrokerConfig(data_dir="simulated", durability="fsync")
    before = replace(NOW, name="before", older_files=True)
    broker = BrokerProcess(schedule, Network(schedule), config, lambda: 1, before)
    broker.stop()
    assert broker.files.read_all(CLEAN_MARKER) == b""
    broker.release = NOW
    broker.start()
    assert broker.state.directory.clean
    assert broker.state.directory.segments == {}
    broker.stop()
    assert broker.files.read_all(CLEAN_MARKER) != b""


# -- APIs


def test_both_sides_learn_what_the_older_one_knows() -> None:
    version = ApiVersionsResponse.STABLE_VERSION
    answer = b"head" + encode(_answer(level_zero=True), version)
    old = release_before(1, "classic").apis
    frame = lowered(answer, old, {PRODUCE: 3})
    assert frame[:4] == b"head"
    answered = decode(ApiVersionsResponse, version, frame[4:])
    newest = {api.api_key: api.max_version for api in answered.api_keys}
    assert (newest[PRODUCE], newest[LIST_OFFSETS], newest[END_TXN]) == (3, 5, 1)
    assert answered.finalized_features == [], "no transactions as of KIP-890"
