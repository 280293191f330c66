"""What `kafka-topics.sh` and `kafka-acls.sh` do for librdkafka's tests, through our own Admin.

The tests call the scripts of an Apache Kafka that lies beside them; only the options that they
use are here. `make interop` runs the real ones.
"""

from __future__ import annotations

import argparse
import sys

from kohort import Admin, NewTopic


def topics(arguments: list[str]) -> None:
    """kafka-topics.sh --create, --alter (partitions), --delete."""
    parser = argparse.ArgumentParser(prog="kafka-topics.sh")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--replication-factor", type=int)
    parser.add_argument("--config", action="append", default=[])
    action = parser.add_mutually_exclusive_group(required=True)
    for name in ("create", "alter", "delete"):
        action.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args(arguments)
    with Admin(bootstrap_servers=options.bootstrap_server) as admin:
        if options.create:
            configs = dict(entry.split("=", 1) for entry in options.config)
            admin.create_topics(
                [
                    NewTopic(
                        options.topic,
                        options.partitions or -1,
                        options.replication_factor or -1,
                        configs,
                    )
                ]
            )
        elif options.alter:
            admin.create_partitions({options.topic: options.partitions})
        else:
            admin.delete_topics([options.topic])


def main() -> int:
    """The first argument names the script."""
    script, *arguments = sys.argv[1:]
    if script != "kafka-topics.sh":
        print(f"{script}: not served yet", file=sys.stderr)
        return 1
    topics(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
