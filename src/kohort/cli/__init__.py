"""The `kohort` command: one folder a group of commands, what they share in `common`.

Commands are imported when they are called, so `--help` stays quick. They read a cluster through
`kohort.sampling`, decide in `kohort.observe`, and print; nothing imports a command.
"""

from __future__ import annotations


def main() -> None:
    """The entry point of the `kohort` script. Ctrl-C while it is still being imported, too."""
    try:
        from kohort.cli.common.root import app, run

        run(app)
    except KeyboardInterrupt:
        raise SystemExit(_interrupted()) from None


def _interrupted() -> int:
    import sys

    sys.stderr.write("interrupted\n")
    return 130
