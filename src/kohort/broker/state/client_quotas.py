"""Quotas of clients (KIP-546): kept and shown. They are not enforced here (docs/skipped.md).

Rules:
- A quota is for a user, a client id, both together, or an address; a name of None is the default of
  its kind. Names and values are checked as Apache Kafka does, and a change is durable before it is
  answered.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kohort.broker.log.directory import DataDirectory, Entity
from kohort.broker.log.files import disk_refusal
from kohort.errors import BrokerError, ErrorCode

USER, CLIENT_ID, ADDRESS = "user", "client-id", "ip"
ENTITIES_MAX: Final = 10_000
EXACT, DEFAULT, ANY = 0, 1, 2
_OF_CLIENTS: Final = {
    "producer_byte_rate": True,
    "consumer_byte_rate": True,
    "request_percentage": False,
    "controller_mutation_rate": False,
}
_OF_ADDRESSES: Final = {"connection_creation_rate": True}
"""Quotas by name, and whether they are whole numbers."""
_LARGEST: Final = 2.0**63
"""What the largest whole number, "no limit" of Apache Kafka, is as a double."""


class Component(NamedTuple):
    """One part of a question: a kind, and whom of that kind (EXACT, DEFAULT, ANY)."""

    kind: str
    match: int
    name: str | None


class ClientQuotas:
    """What was set for whom."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._quotas: dict[Entity, dict[str, float]] = dict(directory.registry.quotas)

    def alter(
        self,
        parts: Iterable[tuple[str, str | None]],
        changes: Mapping[str, float | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Set quotas of one entity (None: take away). Raises BrokerError; then nothing changes."""
        entity = tuple(sorted(dict(parts).items()))
        known = _check_entity(entity)
        for key, value in changes.items():
            _check_value(key, value, known)
        if entity not in self._quotas and len(self._quotas) >= ENTITIES_MAX:
            raise BrokerError(
                ErrorCode.POLICY_VIOLATION, f"{ENTITIES_MAX} entities have quotas, the maximum"
            )
        if validate_only:
            return
        quotas = dict(self._quotas)
        values = {**quotas.get(entity, {}), **changes}
        kept = {key: value for key, value in values.items() if value is not None}
        quotas.pop(entity, None)
        if kept:
            quotas[entity] = kept
        registry = self._directory.registry
        before, registry.quotas = registry.quotas, list(quotas.items())
        try:
            self._directory.save()
        except OSError as error:
            registry.quotas = before
            raise disk_refusal(error) from error
        self._quotas = quotas

    def matching(
        self, components: Iterable[Component], *, strict: bool
    ) -> list[tuple[Entity, dict[str, float]]]:
        """The quotas of all who match; `strict`: who have no further kind. Raises BrokerError."""
        components_by_type: dict[str, Component] = {}
        for component in components:
            _check_component(component, components_by_type)
            components_by_type[component.kind] = component
        if ADDRESS in components_by_type and len(components_by_type) > 1:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, "an address has quotas alone, not with a user or client"
            )
        return [
            (entity, values)
            for entity, values in self._quotas.items()
            if _matches(dict(entity), components_by_type, strict=strict)
        ]


def _matches(
    entity: Mapping[str, str | None], components: Mapping[str, Component], *, strict: bool
) -> bool:
    if strict and len(entity) != len(components):
        return False
    return all(
        kind in entity and (component.match == ANY or entity[kind] == component.name)
        for kind, component in components.items()
    )


def _check_component(component: Component, before: Mapping[str, Component]) -> None:
    kind, match, name = component
    if not kind or kind in before:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"kind {kind!r} is asked for twice")
    if kind not in (USER, CLIENT_ID, ADDRESS):
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"there are no entities of kind {kind!r}")
    if match not in (EXACT, DEFAULT, ANY):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"match type {match} is not known")
    if (name is not None) != (match == EXACT):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a name is for the exact match, and only that")


def _check_entity(entity: Entity) -> Mapping[str, bool]:
    """Which quotas it may have."""
    kinds = {kind for kind, _ in entity}
    bad = kinds - {USER, CLIENT_ID, ADDRESS}
    if not kinds or bad or (ADDRESS in kinds and len(kinds) > 1):
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"quotas are for a user, a client-id, both, or an ip; not for {sorted(kinds)}",
        )
    for kind, name in entity:
        if name == "":
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"the name of the {kind} is empty")
    address = dict(entity).get(ADDRESS)
    if address is not None:
        try:
            ipaddress.ip_address(address)
        except ValueError as error:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, f"{address!r} is not an address"
            ) from error
    return _OF_ADDRESSES if ADDRESS in kinds else _OF_CLIENTS


def _check_value(key: str, value: float | None, known: Mapping[str, bool]) -> None:
    if key not in known:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"no quota {key!r} here; there are: {', '.join(known)}"
        )
    if value is None:
        return
    is_whole = 0 < value <= _LARGEST and value.is_integer()  # infinity is no whole number
    if not value > 0 or (known[key] and not is_whole):
        kind = "a whole number above zero" if known[key] else "above zero"
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{key}={value} must be {kind}")
