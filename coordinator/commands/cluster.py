"""`imbrex cluster ...`: who belongs to the cluster; on the coordinator's device, by its state
directory. Nothing but typer is imported here: `--help` stays fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.commands.options import Config, Json, StateDir

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_STATE = "Run them on the coordinator's device, as its user or as root."


def add_cluster(front: typer.Typer) -> None:
    """Adds the commands."""
    help_text = f"Who belongs to the cluster: certificates, invitations, members. {_STATE}"
    front.add_typer(app, name="cluster", help=help_text)


@app.command()
def init(config: Config = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Makes the cluster's own certificate authority; from then on, daemons speak TLS.

    Does nothing where there is one already. A running coordinator is to be restarted.

    \b
    imbrex cluster init
    sudo imbrex cluster init --state-dir /var/lib/imbrex/coordinator
    """
    from coordinator.commands import cluster_trust as command

    raise typer.Exit(command.init(config, state_dir, as_json=as_json))


@app.command()
def invite(
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT]", help="Of the coordinator. [default: found out]"),
    ] = None,
    minutes: Annotated[int, typer.Option(min=1, max=10080, help="How long it is good for.")] = 60,
    config: Config = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Prints a join token: one device may join with it, once.

    \b
    imbrex cluster invite
    imbrex worker --join TOKEN                 (on the device that joins)
    imbrex cluster invite --address 192.168.1.20 --minutes 10
    """
    from coordinator.commands import cluster_trust as command

    raise typer.Exit(command.invite(config, state_dir, address, minutes, as_json=as_json))


@app.command("list")
def members(config: Config = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """The devices that belong to the cluster, and when their certificates end."""
    from coordinator.commands import cluster_trust as command

    raise typer.Exit(command.members(config, state_dir, as_json=as_json))


@app.command()
def remove(
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="Id or name.")],
    config: Config = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Takes a device out of the cluster, at once: nobody there speaks with it any more.

    \b
    imbrex cluster remove kitchen
    """
    from coordinator.commands import cluster_trust as command

    raise typer.Exit(command.remove(config, state_dir, device, as_json=as_json))
