"""`imbrex cluster ...`: who belongs to the cluster; on the coordinator's device, by its state
directory. Nothing but typer is imported here: `--help` stays fast.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from imbrex.cli.options import Config, Json, StateDir

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


class Role(StrEnum):
    """As `coordinator.keys.Role`, which would be slow to import for `--help`."""

    infer = "infer"
    admin = "admin"


_STATE = "Run them on the coordinator's device, as its user or as root."


def add_cluster(front: typer.Typer) -> None:
    """Adds the commands."""
    help_text = f"Who belongs to the cluster: certificates, invitations, members. {_STATE}"
    front.add_typer(app, name="cluster", help=help_text)


@app.command()
def init(
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="A new one in place of one that is lost; enrol every device again."
        ),
    ] = False,
    config: Config = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Makes the cluster's own certificate authority; from then on, daemons speak TLS.

    Does nothing where there is one already. Restart a coordinator that is running.

    \b
    imbrex cluster init
    imbrex cluster init --replace
    sudo imbrex cluster init --state-dir /var/lib/imbrex/coordinator
    """
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.init(config, state_dir, replace=replace, as_json=as_json))


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
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.invite(config, state_dir, address, minutes, as_json=as_json))


@app.command()
def authority(config: Config = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Prints the certificate that clients of `imbrex coordinator --tls` believe. It is no secret.

    \b
    imbrex cluster authority > home.pem
    IMBREX_CA=home.pem imbrex status --url https://pi-1.local:8460
    curl --cacert home.pem https://pi-1.local:8460/healthz
    """
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.authority(config, state_dir, as_json=as_json))


@app.command("list")
def members(config: Config = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """The devices that belong to the cluster, and when their certificates end."""
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.members(config, state_dir, as_json=as_json))


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE.tgz", help="Where to; keep it safe.")],
    config: Config = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Writes the authority, members, API keys and measurements into one file.

    \b
    imbrex cluster backup home.tgz
    imbrex cluster restore home.tgz            (on a new coordinator, before it starts)
    """
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.save(config, state_dir, file, as_json=as_json))


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE.tgz", help="What backup wrote.")],
    config: Config = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Puts a backup in place, where there is no cluster yet."""
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.put_back(config, state_dir, file, as_json=as_json))


@app.command()
def key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is.")],
    role: Annotated[
        Role, typer.Option(help="infer: ask and look; admin: change things, too.")
    ] = Role.infer,
    config: Config = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Makes an API key; from the first one on, nobody gets an answer without.

    \b
    imbrex cluster key frigate
    imbrex cluster key me --role admin
    curl -H "X-API-Key: KEY" http://pi-1:8460/v1/devices
    IMBREX_API_KEY=KEY imbrex status
    """
    from imbrex.cli import cluster_keys as command

    raise typer.Exit(command.add(config, state_dir, name, role.value, as_json=as_json))


@app.command()
def keys(config: Config = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """The API keys, without their secrets."""
    from imbrex.cli import cluster_keys as command

    raise typer.Exit(command.show(config, state_dir, as_json=as_json))


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is.")],
    config: Config = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Ends an API key, at once. With the last one, everybody may do everything again."""
    from imbrex.cli import cluster_keys as command

    raise typer.Exit(command.revoke(config, state_dir, name, as_json=as_json))


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
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.remove(config, state_dir, device, as_json=as_json))


@app.command()
def confirm(config: Config = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Says that the list of members here is right, where devices know a newer one.

    After a backup was restored and the coordinator has started: devices let in nobody by an older
    list, since it may name who was removed since. Remove them first.

    \b
    imbrex cluster list
    imbrex cluster confirm
    """
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.confirm(config, state_dir, as_json=as_json))
