"""Handlers whose results count exactly once, in a database or in another topic (spec 5.4, 6.3).

python examples/app_exactly_once.py TOPIC GROUP sqlite:///bills.db [BOOTSTRAP]
python examples/app_exactly_once.py TOPIC GROUP kafka [BOOTSTRAP]      # results go to TOPIC.bills
"""

from __future__ import annotations

import sys
from typing import Any

from kohort import App, Permanent


def bill(record: Any) -> dict[str, Any]:
    """The bill of one order; a bad order is a permanent failure."""
    amount = int(record.value or b"0")
    if amount < 0:
        raise Permanent("negative_amount")
    return {"id": record.id, "customer": (record.key or b"").decode(), "amount": amount}


def into_database(topic: str, group: str, url: str, bootstrap: str) -> App:
    """The row, the ledger and the offset are one database transaction."""
    app = App(group, bootstrap_servers=bootstrap, exactly_once=url, retries="5m 30m 1h")

    @app.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS bills (id TEXT, customer TEXT, amount INTEGER)")

    app.handler(topic, table="bills")(bill)
    return app


def into_kafka(topic: str, group: str, bootstrap: str) -> App:
    """The result, the copy for a retry and the offset are one Kafka transaction."""
    app = App(group, bootstrap_servers=bootstrap, exactly_once="kafka", retries="5m 30m 1h")

    @app.handler(topic)
    def handle(record: Any) -> None:
        made = bill(record)
        record.send(f"{topic}.bills", str(made["amount"]).encode(), record.key)

    return app


if __name__ == "__main__":
    name, members, mode = sys.argv[1:4]
    servers = (sys.argv[4:] or ["localhost:9092"])[0]
    if mode == "kafka":
        into_kafka(name, members, servers).run()
    else:
        into_database(name, members, mode, servers).run()
