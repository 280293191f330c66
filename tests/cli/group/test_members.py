"""`kohort group remove-member` (spec 8.1): a static member that does not come back."""

from __future__ import annotations

from kohort import Consumer
from kohort.testing import Cluster
from tests.cli.conftest import Run


def test_a_static_member_is_removed_only_when_told_to(kohort: Run, cluster: Cluster) -> None:
    kohort("topic", "create", "orders", "-p", "2")
    with Consumer(
        bootstrap_servers=cluster.bootstrap, group_id="billing", group_instance_id="billing-7"
    ) as consumer:
        consumer.subscribe(["orders"])
        while not consumer.assignment():
            consumer.poll(0.1)
        unknown = kohort("group", "remove-member", "billing", "--instance", "biling-7", "--execute")
        assert unknown.code == 1
        assert "no static member 'biling-7'; did you mean 'billing-7'?" in unknown.err
        plan = ("group", "remove-member", "billing", "--instance", "billing-7")
        ran = kohort(*plan)
        assert ran.out == "would remove billing-7: it has 2 partitions\n"
        assert "nothing was changed" in ran.err
        assert '"members": 1' in kohort("group", "list", "-o", "json").out
        assert kohort(*plan, "--execute").out == "removed billing-7: it has 2 partitions\n"
        assert '"members": 0' in kohort("group", "list", "-o", "json").out
