"""The `kohort` command. Commands are imported when they are called, so `--help` stays quick."""

from __future__ import annotations


def main() -> None:
    """The entry point of the `kohort` script."""
    from kohort.cli.app import app, run

    run(app)
