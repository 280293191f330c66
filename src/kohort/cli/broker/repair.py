"""`kohort broker repair`: damaged segments of a data directory, found and cut out.

Shell: files.
"""

from __future__ import annotations

from pathlib import Path

import click

from kohort.cli.common.output import output_option, show
from kohort.cli.common.root import EXIT_CHECK_FAILED

COLUMNS = ["file", "problem", "position", "bytes", "lost_offsets"]
EXAMPLES = """\b
Examples:
  kohort broker repair ./data
  kohort broker repair ./data --execute
"""


@click.command(epilog=EXAMPLES)
@click.argument("data_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--execute", is_flag=True, help="Repair the segments; default: only report the damage."
)
@output_option
def repair(data_dir: Path, execute: bool, output: str) -> int:
    """Find damaged segments in the data directory of a stopped broker, and cut the damage out.

    Every readable record stays at its offset. The command keeps damaged bytes in a file that ends
    in .damaged, beside their segment. Consumers skip lost offsets.

    Exit code 3 when there is damage and --execute was not given.
    """
    from kohort.broker.log.directory import existing
    from kohort.broker.log.os_files import OsFiles
    from kohort.broker.log.repair import damage_of
    from kohort.broker.log.repair import repair as repair_partition

    files = OsFiles(data_dir)
    try:
        damages = {name: damage_of(files, name) for name in sorted(existing(files))}
        damaged = {name: damage for name, damage in damages.items() if damage}
        rows = [
            {
                "file": each.path,
                "problem": "missing segment" if each.missing else "damaged bytes",
                "position": None if each.missing else each.position,
                "bytes": None if each.missing else each.size,
                "lost_offsets": each.lost,
            }
            for damage in damaged.values()
            for each in damage
        ]
        if rows or output != "table":
            show(rows, COLUMNS, output)
        if execute:
            for name, damage in damaged.items():
                repair_partition(files, name, damage)
    finally:
        files.close()
    if not rows:
        click.echo(f"no damage in {len(damages)} partitions", err=True)
        return 0
    if execute:
        click.echo(f"repaired {len(damaged)} partitions", err=True)
        return 0
    click.echo("nothing was changed; add --execute to repair it", err=True)
    return EXIT_CHECK_FAILED
