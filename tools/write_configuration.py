"""Write `docs/configuration.md` and the typed settings from the clients' configuration classes.

python tools/write_configuration.py            write it
python tools/write_configuration.py --check    fail when it is not up to date
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from kohort.client.common import config
from kohort.client.common import security_config as security
from kohort.lean import fields

TARGET = ROOT / "docs" / "configuration.md"
TYPES = ROOT / "src" / "kohort" / "client" / "common" / "typed_settings.py"

INTRODUCTION = """\
# Configuration

Written by `make configuration` from `kohort/client/common/config.py` and `security_config.py`; a test fails when it
is not up to date. Names, units and defaults are Kafka's, unless a row says otherwise. Other
clients' names: [migration.md](migration.md#settings); the broker's settings:
[BrokerConfig](api/broker.md); an `App`'s: [processing.md](processing.md#sizing).

| where | form | notes |
|---|---|---|
| in Python | `Consumer(group_id="billing")`, `Consumer({"group.id": "billing"})`, `Consumer(ConsumerConfig(...))` | a client reads no files and no environment by itself |
| a file | `Consumer(ConsumerConfig.load("client.properties"))`, also `.toml` with tables `[consumer]`, `[producer]`, `[admin]` and `[profiles.NAME]` | `load()` without a name: the user's `~/.config/kohort/config.toml`, then the project's `kohort.toml` or `[tool.kohort]` of `pyproject.toml` |
| the environment | `KOHORT_GROUP_ID=billing`, for one role `KOHORT_CONSUMER__GROUP_ID` | `load` and the command line read it |
| the command line | `-b SERVERS`, `-X key=value`, `--config FILE`, `--profile NAME` | overrides all of the above |

Later rows override earlier ones. `kohort config show --origin` shows where each setting comes from; `--given` omits the
defaults. Durations (`_ms`) accept units, such as `5s` or `30m`; sizes accept `64MiB`. A file can hold a secret:
`sasl.password.file=/run/secret`. An unknown key, or one of another role, is an error that names the nearest key.
"""  # noqa: E501


def notes(path: str, name: str) -> Iterator[tuple[str, str]]:
    """Each field of a class and what is written below it. Raises SystemExit for one without."""
    tree = ast.parse(Path(path).read_text())
    found = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    for field, note in itertools.pairwise(found.body):
        if not isinstance(field, ast.AnnAssign):
            continue
        constant = note.value if isinstance(note, ast.Expr) else None
        if not isinstance(constant, ast.Constant):
            raise SystemExit(f"{name}.{ast.unparse(field.target)}: say below it what it means")
        yield ast.unparse(field.target), " ".join(str(constant.value).split())


def table(title: str, path: str, kind: type) -> Iterator[str]:
    """One class's settings: name, default, meaning."""
    defaults = {field.name: field.default for field in fields(kind)}
    yield from ("", f"## {title}", "", "| name | default | meaning |", "|---|---|---|")
    for name, text in notes(path, kind.__name__):
        meaning = text.replace("|", "\\|")
        yield f"| `{name}` | {shown(name, defaults[name])} | {meaning} |"


def shown(name: str, value: object) -> str:
    """A default as a reader takes it in: large numbers with their unit beside them."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`"
    if isinstance(value, int) and not name.endswith("_ms") and value >= 1 << 20:
        return "2^31 - 1" if value == config.INT32_MAX else f"{value >> 20} MiB"
    return f"`{value}`" if value != "" else "empty"


def page() -> str:
    """The whole page."""
    clients = config.__file__
    lines = [
        *table("Every client", clients, config.ClientConfig),
        *table("Consumer", clients, config.ConsumerConfig),
        *table("Producer", clients, config.ProducerConfig),
        "",
        "## Admin",
        "",
        "What every client has, and no more.",
        *table("Security, every client", security.__file__, security.SecurityConfig),
        "",
        "In steps, and on both sides: [security.md](security.md).",
        "",
    ]
    return INTRODUCTION + "\n".join(lines)


WIDER = {"partition_assignment_strategy": "str | Assignor | Iterable[str | Assignor]"}
"""Keywords that take more than the field keeps."""


def annotation(text: str) -> str:
    """The type of a keyword: the field's, and text where text is converted."""
    kinds = text.split(" | ")
    if "str" in kinds or "Callable" in text:
        return text
    return " | ".join(["str", *kinds])


def typed_fields(path: str, kind: str) -> dict[str, str]:
    """The keyword type of each field of a configuration class."""
    tree = ast.parse(Path(path).read_text())
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == kind).body
    return {
        (name := ast.unparse(field.target)): WIDER.get(name)
        or annotation(ast.unparse(field.annotation))
        for field in body
        if isinstance(field, ast.AnnAssign)
    }


def typed(name: str, base: str, text: str, members: dict[str, str]) -> Iterator[str]:
    """One TypedDict."""
    yield from ("", "", f"class {name}({base}, total=False):", f'    """{text}"""', "")
    yield from (f"    {field}: {type_}" for field, type_ in members.items())


def types() -> str:
    """The module of the typed settings."""
    clients = config.__file__
    every = typed_fields(security.__file__, "SecurityConfig")
    every |= typed_fields(clients, "ClientConfig")
    servers = {"bootstrap_servers": every.pop("bootstrap_servers")}
    consumer = typed_fields(clients, "ConsumerConfig")
    own = {name: consumer.pop(name) for name in ("group_id", "enable_auto_commit")}
    lines = [
        '"""The settings of each client as keyword types, for editors and type checkers.',
        "",
        "Written by `make configuration`; a test fails when it is stale. Text is accepted for",
        "numbers, too: `5s`, `64MiB`. A mapping with dotted names is a client's first argument,",
        "and the argument `client` of `App` and `Pipeline`.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Callable, Iterable",
        "from typing import Any, TypedDict",
        "",
        "from kohort.client.common.config import Partitioner",
        "from kohort.group.assignors import Assignor",
        *typed("SharedSettings", "TypedDict", "Settings of every client.", every),
        *typed("AdminSettings", "SharedSettings", "Keywords of `Admin` and `AsyncAdmin`.", servers),
        *typed(
            "AppClientSettings",
            "SharedSettings",
            "Consumer settings of `App` and `Pipeline`, which set servers, group and commits.",
            consumer,
        ),
        *typed(
            "ConsumerSettings",
            "AdminSettings, AppClientSettings",
            "Keywords of `Consumer` and `AsyncConsumer`.",
            own,
        ),
        *typed(
            "ProducerSettings",
            "AdminSettings",
            "Keywords of `Producer` and `AsyncProducer`.",
            typed_fields(clients, "ProducerConfig"),
        ),
    ]
    return "\n".join(lines) + "\n"


def stale() -> bool:
    """Whether the page or the types are not what would be written now."""
    return any(
        not path.exists() or path.read_text() != text
        for path, text in ((TARGET, page()), (TYPES, types()))
    )


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit("the configuration is not up to date: `make configuration`" if stale() else 0)
    TARGET.write_text(page())
    TYPES.write_text(types())
