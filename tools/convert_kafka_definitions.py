"""Converts Apache Kafka's message definitions into our own notation (facts only).

Usage: `python tools/convert_kafka_definitions.py DIR...`, where each DIR holds `*.json` definitions
(unpacked from `common/message` of the `kafka-clients`, `kafka-group-coordinator` and
`kafka-transaction-coordinator` jars of one release). Writes `src/kohort/wire/schema/NAME.schema`.

Rules:
- Only facts are taken: names, keys, versions, types, nullability, tags, defaults. No prose.
- Broker-internal APIs (controller, raft, between brokers) are left out: no client speaks them.
- A JSON literal `null` as default means "the type's own default" (so Kafka's generator reads it);
  the text "null" means null. Both were checked against the compiled classes of 4.3.0.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "src" / "kohort" / "wire" / "schema"

# Keys whose only speakers are brokers and controllers.
INTERNAL_KEYS = {4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 83, 84, 85, 86, 87}
DATA_KEPT = {
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "ControlRecordTypeSchema",
    "EndTxnMarker",
}


def load(path: Path) -> dict[str, Any]:
    """Reads one definition; its comments stand on lines of their own."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return json.loads("\n".join(re.sub(r"^\s*//.*$", "", line) for line in lines))


def kept(definition: dict[str, Any]) -> bool:
    """Whether the message is one that a client, or a reader of the internal topics, meets."""
    kind = definition["type"]
    if definition["validVersions"] == "none":
        return False
    if kind in ("request", "response"):
        return definition["apiKey"] not in INTERNAL_KEYS
    if kind == "data":
        return definition["name"] in DATA_KEPT
    return kind in ("header", "coordinator-key", "coordinator-value")


def default_text(field: dict[str, Any]) -> str | None:
    """The default in our notation, or None where it is the type's own."""
    value = field.get("default")
    if value is None:
        return None
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if field["type"].startswith("int") or field["type"].startswith("uint"):
        number = int(text, 0)
        return None if number == 0 else str(number)
    if text in ("", "false"):
        return None
    return text


def field_lines(field: dict[str, Any], depth: int) -> list[str]:
    """One line for the field, and its own fields indented below it."""
    versions = field.get("versions", field.get("taggedVersions"))
    words = [field["name"], field["type"], versions]
    if "nullableVersions" in field:
        words.append(f"null={field['nullableVersions']}")
    if "tag" in field:
        words.append(f"tag={field['tag']}")
        if field["taggedVersions"] != versions:
            words.append(f"tagged={field['taggedVersions']}")
    default = default_text(field)
    if default is not None:
        words.append(f"default={default}")
    if field.get("ignorable"):
        words.append("ignorable")
    if field.get("flexibleVersions") == "none":
        words.append("classic")
    lines = ["    " * depth + " ".join(words)]
    for child in field.get("fields", ()):
        lines += field_lines(child, depth + 1)
    return lines


def convert(definition: dict[str, Any]) -> str:
    """The whole definition in our notation."""
    head = [definition["type"], definition["name"]]
    head.append(f"key={definition.get('apiKey', -1)}")
    head.append(f"versions={definition['validVersions']}")
    head.append(f"flexible={definition['flexibleVersions']}")
    if definition.get("latestVersionUnstable"):
        head.append("unstable")
    lines = [" ".join(head)]
    for struct in definition.get("commonStructs", ()):
        lines.append(f"struct {struct['name']} {struct['versions']}")
        for field in struct["fields"]:
            lines += field_lines(field, 1)
    for field in definition["fields"]:
        lines += field_lines(field, 0)
    return "\n".join(lines) + "\n"


def main(directories: list[str]) -> None:
    """Converts every kept definition of the given directories."""
    TARGET.mkdir(parents=True, exist_ok=True)
    written: set[str] = set()
    for directory in directories:
        for path in sorted(Path(directory).glob("*.json")):
            definition = load(path)
            if kept(definition):
                name = definition["name"]
                (TARGET / f"{name}.schema").write_text(convert(definition), encoding="utf-8")
                written.add(name)
    for old in TARGET.glob("*.schema"):
        if old.stem not in written:
            old.unlink()
    print(f"{len(written)} messages written to {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
