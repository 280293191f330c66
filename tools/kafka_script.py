"""What `kafka-topics.sh` and `kafka-acls.sh` do for librdkafka's tests, through our own Admin.

The tests call the scripts of an Apache Kafka that lies beside them; only the options that they
use are here. `make interop` runs the real ones.
"""

from __future__ import annotations

import argparse
import sys

from kohort import Admin, NewTopic
from kohort.acl import Acl, Operation, Pattern, Permission, Resource


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


def acls(arguments: list[str]) -> None:
    """kafka-acls.sh --add or --remove, --allow-principal or --deny-principal … --topic …."""
    parser = argparse.ArgumentParser(prog="kafka-acls.sh")
    parser.add_argument("--bootstrap-server", required=True)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--add", action="store_true")
    action.add_argument("--remove", action="store_true")
    parser.add_argument(
        "--force", action="store_true", help="without asking, which this never does"
    )
    who = parser.add_mutually_exclusive_group(required=True)
    for kind in ("allow", "deny"):
        who.add_argument(f"--{kind}-principal")
        parser.add_argument(f"--{kind}-host", default="*")
    parser.add_argument("--operation", required=True)
    parser.add_argument("--topic", required=True)
    options = parser.parse_args(arguments)
    allows = options.allow_principal is not None
    entry = Acl(
        Resource.TOPIC,
        options.topic,
        Pattern.LITERAL,
        options.allow_principal if allows else options.deny_principal,
        options.allow_host if allows else options.deny_host,
        Operation[options.operation.upper()],
        Permission.ALLOW if allows else Permission.DENY,
    )
    with Admin(bootstrap_servers=options.bootstrap_server) as admin:
        if options.add:
            admin.create_acls([entry])
        else:
            admin.delete_acls(entry.as_filter())


SCRIPTS = {"kafka-topics.sh": topics, "kafka-acls.sh": acls}

if __name__ == "__main__":
    SCRIPTS[sys.argv[1]](sys.argv[2:])
