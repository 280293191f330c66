"""Scenario files: one story in TOML, read strictly, and written from plans.

Rules:
- The file lists the actors, the events in sentences, and the conditions at the end; all invariants
  hold anyway (docs/simulator.md). An unknown sentence is refused with the nearest one.
- A scenario runs under several seeds (small chances: delays, ids) and in each of its variants.
- The scenarios of the package are named after the bug they replay or the spec's number.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, cast

from kohort.errors import ConfigError
from kohort.setting_keys import nearest
from kohort.simulator.conditions import EXPECTATIONS
from kohort.simulator.plan import ConsumerPlan, Plan, Settings
from kohort.simulator.script import parse_step

SUFFIX = ".toml"
DEFAULT_SEEDS = 3
_TOP = {
    "name",
    "about",
    "proves",
    "bug",
    "spec",
    "seeds",
    "variants",
    "steps",
    "expect",
    "peace_ms",
    "world",
    "consumers",
    "settings",
}
_WORLD = {"nodes", "topics", "group_partitions", "node_permille"}
_CONSUMER = {f.name for f in dataclasses.fields(ConsumerPlan)}
_SETTINGS = {f.name for f in dataclasses.fields(Settings)}


@dataclass(frozen=True)
class Scenario:
    """A story and the ways to run it."""

    name: str
    about: str
    bug: str
    """`B14`, or the spec's number."""
    seeds: int
    variants: tuple[dict[str, str], ...]
    """For each run the settings of every consumer that differ: protocol, assignor."""
    plan: Plan

    def plans(self, first_seed: int = 1) -> Iterator[Plan]:
        """Every run: each variant under each seed."""
        for variant in self.variants:
            names = " ".join(variant.values())
            consumers = tuple(dataclasses.replace(each, **variant) for each in self.plan.consumers)
            for seed in range(first_seed, first_seed + self.seeds):
                name = f"{self.name} ({names}, seed {seed})" if names else f"{self.name} ({seed=})"
                yield self.plan.but(seed=seed, consumers=consumers, name=name)


def parse(text: str, source: str) -> Scenario:
    """A scenario out of its file's text. Raises ConfigError, with `source` in it."""
    try:
        raw = tomllib.loads(text)
        return _scenario(raw)
    except (tomllib.TOMLDecodeError, ConfigError, TypeError) as error:
        raise ConfigError(f"{source}: {error}") from error


def _scenario(raw: dict[str, Any]) -> Scenario:
    _known(raw, _TOP, "a scenario")
    world = raw.get("world", {})
    _known(world, _WORLD, "[world]")
    settings = raw.get("settings", {})
    _known(settings, _SETTINGS, "[settings]")
    consumers: list[ConsumerPlan] = []
    for each in raw.get("consumers", ()):
        _known(each, _CONSUMER, "[[consumers]]")
        arguments = _frozen(each)
        arguments.setdefault("topics", tuple(sorted(world.get("topics", {"orders": 2}))))
        consumers.append(ConsumerPlan(**arguments))
    steps, expect = tuple(raw.get("steps", ())), tuple(raw.get("expect", ()))
    for step in steps:
        parse_step(step)
    for sentence in expect:
        EXPECTATIONS.parse(sentence)
    plan = Plan(
        seed=1,
        nodes=world.get("nodes", 3),
        topics=dict(world.get("topics", {"orders": 2})),
        consumers=tuple(consumers),
        steps=steps,
        group_partitions=world.get("group_partitions", 2),
        settings=Settings(**_frozen(settings)),
        node_permille=tuple(world.get("node_permille", ())),
        name=raw.get("name", "scenario"),
        about=raw.get("about", "").strip(),
        proves=tuple(raw.get("proves", ())),
        expect=expect,
        peace_ms=raw.get("peace_ms"),
    )
    return Scenario(
        plan.name,
        plan.about,
        raw.get("bug", raw.get("spec", "")),
        raw.get("seeds", DEFAULT_SEEDS),
        tuple(_variant(text) for text in raw.get("variants", ("",))),
        plan,
    )


def _variant(text: str) -> dict[str, str]:
    """`classic range`, `consumer`, `range`: the protocol, the assignor, or both."""
    values: dict[str, str] = {}
    for word in text.split():
        values["protocol" if word in {"classic", "consumer"} else "assignor"] = word
    return values


def _frozen(values: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as tuples, as plans have them."""
    return {
        key: tuple(cast("list[Any]", value)) if isinstance(value, list) else value
        for key, value in values.items()
    }


def _known(names: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for key in names:
        if key not in known:
            near = nearest(key, known)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"{where} has {key!r}, which is not known{hint}")


# -- the package's own ---------------------------------------------------------------------------


def _shipped() -> list[Traversable]:
    folder = files("kohort.simulator").joinpath("scenarios")
    return sorted((f for f in folder.iterdir() if f.name.endswith(SUFFIX)), key=lambda f: f.name)


def examples() -> list[Scenario]:
    """The scenarios of the package, by name."""
    return [parse(f.read_text(encoding="utf-8"), f.name) for f in _shipped()]


def load(name_or_file: str) -> Scenario:
    """A scenario by the name it is shipped under, or from a file. Raises ConfigError."""
    path = Path(name_or_file)
    if path.suffix == SUFFIX or path.exists():
        try:
            return parse(path.read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
    known = {f.name.removesuffix(SUFFIX): f for f in _shipped()}
    if name_or_file not in known:
        near = nearest(name_or_file, known)
        hint = f"; did you mean {near!r}?" if near else "; see `kohort simulate examples`"
        raise ConfigError(f"no scenario is named {name_or_file!r}{hint}")
    scenario = known[name_or_file]
    return parse(scenario.read_text(encoding="utf-8"), scenario.name)


# -- writing -------------------------------------------------------------------------------------


def written(plan: Plan, about: str) -> str:
    """A plan as a scenario file."""
    lines = [
        f"name = {_value(plan.name)}",
        f"about = {_value(about)}",
        "seeds = 1",
        f"steps = {_lines(plan.steps)}",
        f"expect = {_lines(plan.expect)}",
        "",
        "[world]",
        f"nodes = {plan.nodes}",
        f"topics = {_value(plan.topics)}",
        f"group_partitions = {plan.group_partitions}",
        f"node_permille = {_value(plan.node_permille)}",
    ]
    for consumer in plan.consumers:
        lines += ["", "[[consumers]]", *_differing(consumer, ConsumerPlan("", ()))]
    changed = list(_differing(plan.settings, Settings()))
    if changed:
        lines += ["", "[settings]", *changed]
    return "\n".join(lines) + "\n"


def _differing(actual: Any, default: Any) -> Iterator[str]:
    for each in dataclasses.fields(actual):
        value = getattr(actual, each.name)
        if value != getattr(default, each.name):
            yield f"{each.name} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in pairs) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_value(each) for each in cast("list[Any]", value)) + "]"
    return json.dumps(value)


def _lines(texts: tuple[str, ...]) -> str:
    return "[\n" + "".join(f"  {json.dumps(text)},\n" for text in texts) + "]"
