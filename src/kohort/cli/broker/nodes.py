"""`kohort broker down`, `up`, `move-leader`, …: failovers of a broker run with `--control`."""

from __future__ import annotations

from urllib.parse import quote

import click

from kohort.cli.common.control_port import control_option
from kohort.cli.common.output import output_option, show
from kohort.sampling.control_port import ControlPort


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  kohort broker {line}" for line in lines) + "\n"


@click.command(epilog=_examples("nodes --control 9690", "nodes --control 9690 -o json"))
@control_option
@output_option
def nodes(control: ControlPort, output: str) -> None:
    """List the nodes and whether they run."""
    states = control.ask("GET", "/nodes")["nodes"]
    show(states, ["id", "host", "port", "rack", "running"], output)


@click.command(epilog=_examples("down 2 --control 9690", "down 2 --orderly --control 9690"))
@click.argument("node", type=int)
@click.option("--orderly", is_flag=True, help="Shut the node down cleanly: move its leaders first.")
@control_option
def down(node: int, orderly: bool, control: ControlPort) -> None:
    """Stop a node: its connections close, and its partitions get new leaders shortly after."""
    control.ask("POST", f"/nodes/{node}/down", {"orderly": orderly})
    click.echo(f"node {node} is down")


@click.command(epilog=_examples("up 2 --control 9690"))
@click.argument("node", type=int)
@control_option
def up(node: int, control: ControlPort) -> None:
    """Start a node again, on its port."""
    control.ask("POST", f"/nodes/{node}/up")
    click.echo(f"node {node} is up")


@click.command(epilog=_examples("restart 2 --control 9690"))
@click.argument("node", type=int)
@control_option
def restart(node: int, control: ControlPort) -> None:
    """Shut a node down in order and start it again."""
    control.ask("POST", f"/nodes/{node}/restart")
    click.echo(f"node {node} is up")


@click.command("move-leader", epilog=_examples("move-leader orders 0 --to 3 --control 9690"))
@click.argument("topic")
@click.argument("partition", type=int)
@click.option("--to", type=int, metavar="NODE", help="The new leader.  [default: the next]")
@control_option
def move_leader(topic: str, partition: int, to: int | None, control: ControlPort) -> None:
    """Move the leader of a partition to another node."""
    body = {"topic": topic, "partition": partition, "to": to}
    leader = control.ask("POST", "/leaders", body)["leader"]
    click.echo(f"node {leader} leads {topic}-{partition}")


@click.command("move-coordinator", epilog=_examples("move-coordinator billing --control 9690"))
@click.argument("group")
@click.option("--to", type=int, metavar="NODE", help="The new coordinator.  [default: the next]")
@control_option
def move_coordinator(group: str, to: int | None, control: ControlPort) -> None:
    """Move the coordinator of a group to another node."""
    node = control.ask("POST", "/coordinators", {"group": group, "to": to})["node"]
    click.echo(f"node {node} coordinates {group}")


@click.command(epilog=_examples("coordinator billing --control 9690"))
@click.argument("group")
@control_option
def coordinator(group: str, control: ControlPort) -> None:
    """Print the node that coordinates a group."""
    click.echo(control.ask("GET", f"/coordinators/{quote(group, safe='')}")["node"])


@click.command(epilog=_examples("loading hold --control 9690", "loading release --control 9690"))
@click.argument("what", type=click.Choice(["hold", "release"]))
@control_option
def loading(what: str, control: ControlPort) -> None:
    """Keep coordinators that move or start in the loading state, until `release`."""
    control.ask("POST", "/loading", {"hold": what == "hold"})
    click.echo("loading is held" if what == "hold" else "loading is released")


COMMANDS = (nodes, down, up, restart, move_leader, move_coordinator, coordinator, loading)
