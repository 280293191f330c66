"""The broker's access control list: kept with the topics, durable before a change is answered.

Rules:
- Whether anything is asked at all is the broker's configuration (`acls`); without it every ACL API
  answers SECURITY_DISABLED, as Kafka does without an authorizer.
- A change of several entries is whole or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kohort.acl import Acl, AclFilter, Operation, Pattern, Permission, Resource
from kohort.broker.base.config import BrokerConfig
from kohort.broker.log.directory import AclRow, DataDirectory
from kohort.broker.log.files import disk_refusal
from kohort.broker.security.authorizer import Authorizer
from kohort.errors import BrokerError, ErrorCode

ACLS_MAX: Final = 100_000


class Acls:
    """Every entry, and the authorizer that applies them (None: everything is allowed)."""

    def __init__(self, config: BrokerConfig, directory: DataDirectory) -> None:
        self._directory = directory
        self.changed: Callable[[], None] = lambda: None
        """Called when who may do what may have changed."""
        self._acls: dict[Acl, None] = {_decode(row): None for row in directory.registry.acls}
        self.authorizer: Authorizer | None = None
        if config.acls:
            self.authorizer = Authorizer(
                self._acls,
                super_users=config.super_users,
                open_without_entries=config.allow_everyone_if_no_acl_found,
            )

    def find(self, acl_filter: AclFilter) -> list[Acl]:
        """The entries that a filter meets."""
        return [acl for acl in self._acls if acl_filter.meets(acl)]

    def change(self, add: Iterable[Acl] = (), remove: Iterable[Acl] = ()) -> None:
        """Add and remove entries. Raises BrokerError and then changes nothing."""
        after = dict.fromkeys((*self._acls, *add))
        for acl in remove:
            after.pop(acl, None)
        if len(after) > ACLS_MAX:
            raise BrokerError(
                ErrorCode.POLICY_VIOLATION,
                f"there would be {len(after)} access control entries, the maximum is {ACLS_MAX}",
            )
        if after.keys() == self._acls.keys():
            return
        before = self._directory.registry.acls
        self._directory.registry.acls = [_encode(acl) for acl in after]
        try:
            self._directory.save()
        except OSError as error:
            self._directory.registry.acls = before
            raise disk_refusal(error) from error
        self._acls = after
        if self.authorizer is not None:
            self.authorizer.replace(after)
        self.changed()


def _encode(acl: Acl) -> AclRow:
    kinds = (acl.resource.name, acl.pattern.name, acl.operation.name, acl.permission.name)
    return [kinds[0], acl.name, kinds[1], acl.principal, acl.host, kinds[2], kinds[3]]


def _decode(row: AclRow) -> Acl:
    resource, name, pattern, principal, host, operation, permission = row
    return Acl(
        Resource[resource],
        name,
        Pattern[pattern],
        principal,
        host,
        Operation[operation],
        Permission[permission],
    )
