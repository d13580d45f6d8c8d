"""`imbrex cluster ...`: manages the cluster's members in the coordinator's state directory. Nothing
but typer is imported here: `--help` stays fast.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from imbrex.cli.options import ConfigOption, Json, StateDir

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


class KeyRole(StrEnum):
    """The values of the coordinator's `keys.Role`, which would be slow to import for `--help`."""

    infer = "infer"
    admin = "admin"


_STATE = "Run these commands on the coordinator's device, as its user or as root."


def add_cluster(front: typer.Typer) -> None:
    """Adds the commands."""
    help_text = f"Manage who belongs to the cluster: certificates, invitations, members. {_STATE}"
    front.add_typer(app, name="cluster", help=help_text)


@app.command()
def init(
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Replace a lost authority; every device must be enrolled again.",
        ),
    ] = False,
    config: ConfigOption = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Create the cluster's certificate authority; from then on, daemons use TLS.

    Does nothing if there is one already. Restart the coordinator afterwards if it is running.

    \b
    imbrex cluster init
    imbrex cluster init --replace
    sudo /opt/imbrex/venv/bin/imbrex cluster init --state-dir /var/lib/imbrex/coordinator
    """
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.init(config, state_dir, replace=replace, as_json=as_json))


@app.command()
def invite(
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT]", help="The coordinator's address. [default: detected]"),
    ] = None,
    minutes: Annotated[
        int, typer.Option(min=1, max=10080, help="How long the token is valid.")
    ] = 60,
    coordinator: Annotated[
        bool,
        typer.Option("--coordinator", help="Invite another coordinator instead of a device."),
    ] = False,
    config: ConfigOption = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Print a token with which one device can join, once.

    \b
    imbrex cluster invite
    imbrex cluster invite --coordinator
    imbrex worker --join TOKEN                 (on the device that joins)
    imbrex cluster invite --address 192.168.1.20 --minutes 10
    """
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(
        command.invite(
            config, state_dir, address, minutes, coordinator=coordinator, as_json=as_json
        )
    )


@app.command("move-state")
def move_state(
    url: Annotated[
        str,
        typer.Argument(
            metavar="nats://HOST:PORT[,HOST:PORT...]|files",
            help="NATS servers with JetStream, or this coordinator's files.",
        ),
    ],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace what is there with this coordinator's copy."),
    ] = False,
    config: ConfigOption = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Move the cluster's state to a store that several coordinators share, or back to files.

    Members, invitations, API keys, drained devices and the list of models move; the authority's key
    stays here. Stop the coordinator first, and start it again afterwards.

    \b
    imbrex cluster move-state nats://pi-1.local:4222,pi-2.local:4222,pi-3.local:4222
    imbrex cluster move-state files
    """
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.move_state(config, state_dir, url, replace=replace, as_json=as_json))


@app.command()
def authority(
    config: ConfigOption = None, state_dir: StateDir = None, as_json: Json = False
) -> None:
    """Print the CA certificate that clients of `imbrex coordinator --tls` need. It is not secret.

    \b
    imbrex cluster authority > home.pem
    IMBREX_CA=home.pem imbrex status --url https://pi-1.local:8460
    curl --cacert home.pem https://pi-1.local:8460/healthz
    """
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.authority(config, state_dir, as_json=as_json))


@app.command()
def certificate(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="The server's host names and addresses."),
    ],
    file: Annotated[
        Path,
        typer.Option("--file", metavar="PEM", help="The file to write; it also holds the key."),
    ],
    config: ConfigOption = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Make a certificate for a server of the store of the cluster's state (see move-state).

    \b
    imbrex cluster certificate pi-1.local 192.168.1.20 --file nats.pem
    """
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.certificate(config, state_dir, names, file, as_json=as_json))


@app.command("list")
def members(config: ConfigOption = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """List the cluster's devices and coordinators, and when their certificates expire."""
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.members(config, state_dir, as_json=as_json))


@app.command()
def backup(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.tgz", help="The file to write; keep it safe.")
    ],
    config: ConfigOption = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Back up the authority, members, API keys and measurements to one file.

    \b
    imbrex cluster backup home.tgz
    imbrex cluster restore home.tgz            (on a new coordinator, before it starts)
    """
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.save(config, state_dir, file, as_json=as_json))


@app.command()
def restore(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.tgz", help="A file written by `imbrex cluster backup`.")
    ],
    config: ConfigOption = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Restore a backup into a state directory without a cluster."""
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.put_back(config, state_dir, file, as_json=as_json))


@app.command()
def key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the key.")],
    role: Annotated[
        KeyRole,
        typer.Option(help="infer: send requests and read the state; admin: also change things."),
    ] = KeyRole.infer,
    config: ConfigOption = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Create an API key; once there is one, every request needs a key.

    \b
    imbrex cluster key frigate
    imbrex cluster key me --role admin
    curl -H "X-API-Key: KEY" http://pi-1:8460/v1/devices
    IMBREX_API_KEY=KEY imbrex status
    """
    from imbrex.cli import cluster_keys as command

    raise typer.Exit(command.add(config, state_dir, name, role.value, as_json=as_json))


@app.command()
def keys(config: ConfigOption = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """List the API keys, without their secrets."""
    from imbrex.cli import cluster_keys as command

    raise typer.Exit(command.show(config, state_dir, as_json=as_json))


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the key.")],
    config: ConfigOption = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Revoke an API key at once. When the last key is revoked, anyone may do everything again."""
    from imbrex.cli import cluster_keys as command

    raise typer.Exit(command.revoke(config, state_dir, name, as_json=as_json))


@app.command()
def remove(
    device: Annotated[
        str, typer.Argument(metavar="DEVICE", help="The id or name of the device or coordinator.")
    ],
    config: ConfigOption = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Remove a device or coordinator from the cluster at once: no device talks to it any more.

    \b
    imbrex cluster remove kitchen
    """
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.remove(config, state_dir, device, as_json=as_json))


@app.command()
def confirm(config: ConfigOption = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Put this list of members in force although devices know a newer one.

    Use it after restoring a backup and starting the coordinator: devices ignore an older list,
    since it may name members that were removed later. Remove those first.

    \b
    imbrex cluster list
    imbrex cluster confirm
    """
    from imbrex.cli import cluster_trust as command

    raise typer.Exit(command.confirm(config, state_dir, as_json=as_json))
