"""What a step may wait for, and what may be expected at the end: one function a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kohort.client.common.types import TopicPartition
from kohort.simulator.grammar import Grammar
from kohort.simulator.network import ANSWER, REQUEST

if TYPE_CHECKING:
    from kohort.simulator.world import World

Met = Callable[[], bool]
CONDITIONS: Grammar[Callable[..., Met]] = Grammar("condition")
EXPECTATIONS: Grammar[Callable[..., bool]] = Grammar("expectation")
_asks = CONDITIONS.means
_expects = EXPECTATIONS.means


def state_of(world: World, who: str) -> str | None:
    """The name of a consumer's membership state, in small letters; None while it has none."""
    app = world.app(who)
    session = None if app is None else app.consumer.core.session
    if session is None or session.member is None:
        return None
    return session.member.state.name.lower()


def owned(world: World, who: str) -> frozenset[TopicPartition]:
    """What a consumer reads now."""
    app = world.app(who)
    return frozenset() if app is None else app.consumer.assignment()


@_asks("{who} is {state}")
def is_in_state(world: World, who: str, state: str) -> Met:
    """Its member's state: stable, joining, syncing, ... (`member.classic_table.State`)."""
    return lambda: state_of(world, who) == state


@_asks("everybody is stable")
def all_stable(world: World) -> Met:
    """Every living consumer is a stable member with nothing left to do, and the group is, too."""
    return world.observed.is_settled


@_asks("{who} owns {tp}")
def owns(world: World, who: str, tp: TopicPartition) -> Met:
    """It is assigned this partition and reads it."""
    return lambda: tp in owned(world, who)


@_asks("{who} owns {n} partitions")
def owns_count(world: World, who: str, count: int) -> Met:
    """It reads this many partitions."""
    return lambda: len(owned(world, who)) == count


@_asks("{who} has read {n} records")
def has_read(world: World, who: str, count: int) -> Met:
    """Its application has got at least this many records."""

    def met() -> bool:
        app = world.app(who)
        return app is not None and app.read >= count

    return met


@_asks("{who} gets {code} from {api}")
def gets_code(world: World, who: str, code: int, api: str) -> Met:
    """The last answer to a scripted member had this error (`NONE` for no error)."""
    return lambda: world.hand(who).last_errors.get(api) == code


@_asks("generation {n} is written")
def generation_written(world: World, generation: int) -> Met:
    """The group's log has this generation (KIP-848: epoch) or a later one."""
    return lambda: world.observed.generation() >= generation and world.observed.is_written()


@_asks("a new generation is written")
def new_generation(world: World) -> Met:
    """The group's log has a later generation (KIP-848: epoch) than when this step began."""
    before = world.observed.generation()
    return lambda: world.observed.generation() > before and world.observed.is_written()


@_asks("a new assignment is written")
def new_assignment(world: World) -> Met:
    """The group's log has the assignment of a later generation than when this step began."""
    before = world.observed.generation()

    def met() -> bool:
        return (
            world.observed.generation() > before
            and assignment_written(world, world.observed.generation())()
        )

    return met


@_asks("{tp} is committed at {n}")
def is_committed(world: World, tp: TopicPartition, offset: int) -> Met:
    """The group's committed offset is this one."""
    return lambda: world.observed.committed(tp) == offset


@_asks("the group has {n} members")
def has_members(world: World, count: int) -> Met:
    """The coordinator counts this many."""

    def met() -> bool:
        group = world.observed.look()
        return group is not None and len(group.members) == count

    return met


@_asks("the assignment of generation {n} is written")
def assignment_written(world: World, generation: int) -> Met:
    """The group's log has the assignment of this generation, or a later one."""

    def met() -> bool:
        stored, group = world.observed.stored(), world.observed.look()
        if group is None or group.epoch < generation or not world.observed.is_written():
            return False
        if stored is None or group.consumer or group.epoch > generation:
            return True
        return not stored.lacks_assignment()

    return met


@_asks("the group is {state}")
def group_is(world: World, state: str) -> Met:
    """The coordinator's state of the group: empty, preparing, completing, stable; under KIP-848
    empty, assigning, reconciling, stable."""
    return lambda: world.observed.state() == state


@_asks("{api} of {who} arrives")
def arrives(world: World, api: str, who: str) -> Met:
    """A node gets this request; earlier ones do not count."""
    return _frame(world, REQUEST, api, who)


@_asks("the answer to {api} of {who} arrives")
def answer_arrives(world: World, api: str, who: str) -> Met:
    """The client gets this answer; earlier ones do not count."""
    return _frame(world, ANSWER, api, who)


def _frame(world: World, way: str, api: str, who: str) -> Met:
    seen: list[bool] = []

    def watch(frame_way: str, frame_api: str, client: str, node: int) -> None:
        del node
        if (frame_way, frame_api, client) == (way, api, who) and not seen:
            seen.append(True)

    world.network.watchers.append(watch)
    return lambda: bool(seen)


@_expects("{who} owns {tps}")
def expect_owns(world: World, who: str, tps: tuple[TopicPartition, ...]) -> bool:
    """At the end it reads exactly these."""
    return owned(world, who) == frozenset(tps)


@_expects("{who} owns nothing")
def expect_nothing(world: World, who: str) -> bool:
    """At the end it reads nothing."""
    return not owned(world, who)


@_expects("{who} owns {n} partitions")
def expect_count(world: World, who: str, count: int) -> bool:
    """At the end it reads this many partitions."""
    return len(owned(world, who)) == count


@_expects("the generation is at most {n}")
def expect_generation(world: World, most: int) -> bool:
    """At the end the group's generation is this one or an earlier one (GL1)."""
    return world.observed.generation() <= most


@_expects("the group has {n} members")
def expect_members(world: World, count: int) -> bool:
    """At the end the coordinator counts this many members."""
    group = world.observed.look()
    return (0 if group is None else len(group.members)) == count


@_expects("{tp} is committed at {n}")
def expect_committed(world: World, tp: TopicPartition, offset: int) -> bool:
    """At the end the group's committed offset is this one."""
    return world.observed.committed(tp) == offset


@_expects("{who} is fenced")
def expect_fenced(world: World, who: str) -> bool:
    """It was fenced by another member with its instance id, and has ended."""
    return any(app.fenced for app in world.all_apps if app.name == who)


@_expects("{who} has been handed {n} records")
def expect_read(world: World, who: str, count: int) -> bool:
    """Its application got exactly this many records; duplicates count."""
    return sum(app.read for app in world.all_apps if app.name == who) == count


@_expects("all consumers have been handed {n} records")
def expect_read_by_all(world: World, count: int) -> bool:
    """All applications together got exactly this many records; duplicates count."""
    return sum(app.read for app in world.all_apps) == count
