"""What a call is given by mistake is told as such, before anything is changed."""

from __future__ import annotations

import pytest

from kohort import Admin, Consumer, Producer
from kohort.errors import UsageError
from kohort.testing import Cluster


def test_one_text_is_no_list_of_names() -> None:
    """`create_topics("abc")` made topics a, b and c; `delete_topics` deleted them."""
    with Cluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        calls = (
            admin.create_topics, admin.delete_topics, admin.describe_topics, admin.describe_groups,
            admin.delete_groups, admin.describe_transactions, admin.describe_users,
        )  # fmt: skip
        for call in calls:
            with pytest.raises(UsageError, match=rf"write {call.__name__}\(\['abc'\]\)"):
                call("abc")
        assert admin.list_topics() == []
        with pytest.raises(UsageError, match="'lates': a time in milliseconds, or latest"):
            admin.list_offsets({("t", 0): "lates"})  # pyright: ignore


def test_what_is_no_partition() -> None:
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
        for wrong in ("orders", ["orders"], [("orders",)]):
            with pytest.raises(UsageError, match="assign\\(\\) takes partitions, not"):
                consumer.assign(wrong)
        with pytest.raises(UsageError, match="commit\\(\\) takes offsets by partition"):
            consumer.commit([("orders", 0)])  # pyright: ignore


@pytest.mark.parametrize("keys", [[b"k"], [b"k"] * 3])
def test_keys_and_values_that_do_not_pair(keys: list[bytes]) -> None:
    """Keys too many were passed over in silence; too few were an IndexError."""
    said = f"2 values and {len(keys)} keys"
    with Producer(bootstrap_servers="127.0.0.1:1") as to, pytest.raises(UsageError, match=said):
        to.send_many("t", [b"a", b"b"], keys)
