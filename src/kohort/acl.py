"""Access control lists: who may do what, as Kafka says it, and what of it makes sense. Pure.

Rules:
- Numbers are Kafka's, as in requests.
- Values for filters only (ANY, MATCH) or unknown ones cannot be in an entry; an operation that a
  kind of resource does not have is refused, because it could only be a mistake.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

WILDCARD: Final = "*"
ANYBODY: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"


class Resource(IntEnum):
    """What is guarded."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """How the name of an entry is meant; MATCH and ANY are for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is done."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether it may be done; a denial is stronger."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_O = Operation
OPERATIONS: Final[dict[Resource, frozenset[Operation]]] = {
    Resource.TOPIC: frozenset(
        {
            _O.READ,
            _O.WRITE,
            _O.CREATE,
            _O.DELETE,
            _O.ALTER,
            _O.DESCRIBE,
            _O.DESCRIBE_CONFIGS,
            _O.ALTER_CONFIGS,
        }
    ),
    Resource.GROUP: frozenset(
        {
            _O.READ,
            _O.DELETE,
            _O.DESCRIBE,
            _O.DESCRIBE_CONFIGS,
            _O.ALTER_CONFIGS,
        }
    ),
    Resource.CLUSTER: frozenset(
        {
            _O.CREATE,
            _O.CLUSTER_ACTION,
            _O.DESCRIBE,
            _O.ALTER,
            _O.DESCRIBE_CONFIGS,
            _O.ALTER_CONFIGS,
            _O.IDEMPOTENT_WRITE,
        }
    ),
    Resource.TRANSACTIONAL_ID: frozenset({_O.DESCRIBE, _O.WRITE, _O.TWO_PHASE_COMMIT}),
}
"""What can be done with each kind of resource that this broker guards."""


class Acl(NamedTuple):
    """One entry."""

    resource: Resource
    name: str
    pattern: Pattern
    principal: str
    """`User:alice`, or `User:*` for everybody."""
    host: str
    """An address, or `*`."""
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        star = "*" if self.pattern is Pattern.PREFIXED else ""
        return (
            f"{self.permission.name.lower()} {self.principal} from {self.host} to "
            f"{self.operation.name.lower()} {self.resource.name.lower()} {self.name}{star}"
        )

    def as_filter(self) -> AclFilter:
        """What meets this entry alone."""
        return AclFilter(*self)

    def covers(self, name: str) -> bool:
        """Whether a resource of this name is meant."""
        if self.pattern is Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


class AclFilter(NamedTuple):
    """What entries are looked for: None and ANY mean all."""

    resource: Resource = Resource.ANY
    name: str | None = None
    pattern: Pattern = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def meets(self, acl: Acl) -> bool:
        """Whether an entry is looked for."""
        return (
            self.resource in (Resource.ANY, acl.resource)
            and self._meets_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _meets_name(self, acl: Acl) -> bool:
        if self.pattern is Pattern.MATCH:  # every entry that applies to a resource of this name
            return self.name is None or acl.covers(self.name)
        return self.pattern in (Pattern.ANY, acl.pattern) and self.name in (None, acl.name)


def fault_of(acl: Acl) -> str | None:
    """Why there cannot be such an entry, or None."""
    allowed = OPERATIONS.get(acl.resource)
    if allowed is None:
        return f"{acl.resource.name} is not a resource that this broker guards"
    if acl.pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        return f"the pattern is LITERAL or PREFIXED in an entry, not {acl.pattern.name}"
    if acl.operation is not Operation.ALL and acl.operation not in allowed:
        return f"a {acl.resource.name} has no operation {acl.operation.name}"
    if acl.permission not in (Permission.ALLOW, Permission.DENY):
        return f"the permission is ALLOW or DENY in an entry, not {acl.permission.name}"
    if not acl.name:
        return "the name of the resource is empty; '*' means all"
    if acl.resource is Resource.CLUSTER and acl.name != CLUSTER_NAME:
        return f"the one resource of kind CLUSTER is called {CLUSTER_NAME!r}"
    kind, colon, who = acl.principal.partition(":")
    if not (kind and colon and who):
        return f"the principal {acl.principal!r} is not of the form TYPE:NAME, as User:alice"
    return None if acl.host else "the host is empty; '*' means all"
