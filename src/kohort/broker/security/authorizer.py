"""Decides who may do what, from the entries there are. Pure.

Rules (as Kafka's StandardAuthorizer):
- Super users may do everything. Otherwise a denial that applies decides, then an allowance.
- An allowance to READ, WRITE, DELETE or ALTER is one to DESCRIBE, too; ALTER_CONFIGS one to
  DESCRIBE_CONFIGS. A denial denies what it names alone.
- A resource that no entry applies to is closed, unless `open_without_entries`.
- Decisions about names of usual length are remembered, up to a bound, until an entry changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from kohort.acl import ANYBODY, WILDCARD, Acl, Operation, Pattern, Permission, Resource

REMEMBERED_MAX: Final = 10_000
REMEMBERED_CHARS_MAX: Final = 255
"""Longer names are decided each time: a client could fill the cache with them."""

_MAPPED: Final = "::ffff:"
"""Entries of before version 0.2 may have an IPv4 address as sockets of both families do."""

_IMPLIED_BY: Final = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
_Asked = tuple[str, str, Operation, Resource, str]


class Authorizer:
    """The entries, and what follows from them."""

    def __init__(
        self,
        acls: Iterable[Acl] = (),
        *,
        super_users: Collection[str] = (),
        open_without_entries: bool = False,
    ) -> None:
        self._super_users = frozenset(super_users)
        self._open = open_without_entries
        self._decided: dict[_Asked, bool] = {}
        self._literal: dict[tuple[Resource, str], list[Acl]] = {}
        self._prefixed: dict[Resource, list[Acl]] = {}
        self.replace(acls)

    def replace(self, acls: Iterable[Acl]) -> None:
        """These are the entries from now on."""
        self._decided.clear()
        self._literal.clear()
        self._prefixed.clear()
        for acl in acls:
            if acl.pattern is Pattern.PREFIXED:
                self._prefixed.setdefault(acl.resource, []).append(acl)
            else:
                self._literal.setdefault((acl.resource, acl.name), []).append(acl)

    def may(
        self, principal: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> bool:
        """Whether this principal, asking from this host, may do this."""
        question = (principal, host, operation, resource, name)
        decided = self._decided.get(question)
        if decided is None:
            decided = self._decide(*question)
            if len(name) > REMEMBERED_CHARS_MAX:
                return decided
            if len(self._decided) >= REMEMBERED_MAX:
                self._decided.clear()
            self._decided[question] = decided
        return decided

    def may_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Whether there can be a resource of this kind with which they may do this (KIP-679)."""
        if principal in self._super_users:
            return True
        every = [
            acl
            for acls in (*self._literal.values(), *self._prefixed.values())
            for acl in acls
            if acl.resource is resource and _concerns(acl, principal, host)
        ]
        denied = [a for a in every if a.permission is Permission.DENY and _names(a, operation)]
        if any(acl.name == WILDCARD and acl.pattern is Pattern.LITERAL for acl in denied):
            return False
        if self._open:
            return True
        return any(
            acl.permission is Permission.ALLOW
            and _allows(acl, operation)
            and not any(_shadows(denial, acl) for denial in denied)
            for acl in every
        )

    def operations(
        self,
        principal: str,
        host: str,
        operations: Iterable[Operation],
        resource: Resource,
        name: str,
    ) -> int:
        """What of these they may do, as a set of bits (KIP-430)."""
        return sum(1 << o for o in operations if self.may(principal, host, o, resource, name))

    def _decide(
        self, principal: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> bool:
        if principal in self._super_users:
            return True
        acls = self._applying(resource, name)
        if not acls:
            return self._open
        mine = [acl for acl in acls if _concerns(acl, principal, host)]
        if any(a.permission is Permission.DENY and _names(a, operation) for a in mine):
            return False
        return any(a.permission is Permission.ALLOW and _allows(a, operation) for a in mine)

    def _applying(self, resource: Resource, name: str) -> list[Acl]:
        return [
            *self._literal.get((resource, name), ()),
            *(self._literal.get((resource, WILDCARD), ()) if name != WILDCARD else ()),
            *(acl for acl in self._prefixed.get(resource, ()) if name.startswith(acl.name)),
        ]


def _concerns(acl: Acl, principal: str, host: str) -> bool:
    named = acl.host.removeprefix(_MAPPED)
    return acl.principal in (principal, ANYBODY) and named in (host, WILDCARD)


def _names(acl: Acl, operation: Operation) -> bool:
    return acl.operation in (operation, Operation.ALL)


def _allows(acl: Acl, operation: Operation) -> bool:
    return _names(acl, operation) or acl.operation in _IMPLIED_BY.get(operation, ())


def _shadows(denial: Acl, allowance: Acl) -> bool:
    """Whether everything that the allowance covers is denied."""
    if denial.pattern is Pattern.PREFIXED:
        whole = allowance.pattern is Pattern.LITERAL and allowance.name == WILDCARD
        return not whole and allowance.name.startswith(denial.name)
    return allowance.pattern is Pattern.LITERAL and allowance.name == denial.name
