"""`imbrex cluster ...`: manages the cluster's members in the coordinator's state directory, whose
files a running coordinator reloads. Only what a command needs is imported: `--help` stays fast.
"""

from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imbrex import terminal
from imbrex.cli.options import ConfigOption, Json, StateDir
from protos.errors import BadConfiguration

if TYPE_CHECKING:
    from coordinator.serving.common.keys import Keys
    from coordinator.settings import CoordinatorSettings
    from coordinator.trust.trust import Certified

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
            "--replace", help="Replace a lost authority; every device must be enrolled again."
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
    from coordinator.trust.authority import Authority
    from protos.trust.identity import now_utc

    folder = _settings(config, state_dir).state_dir
    aside: Path | None = None
    found = None if replace else Authority.load(folder)
    if replace:
        authority, aside = Authority.replace(folder, now_utc())
    else:
        authority = found or Authority.make(folder, now_utc())
    said = "The cluster already has an authority." if found else "The cluster has an authority now."
    terminal.tell(
        {"fingerprint": authority.fingerprint, "changed": found is None},
        (f"The old one is in {aside}.\n" if aside is not None else "")
        + f"{said}\nfingerprint: {authority.fingerprint}\n"
        "Start the coordinator (again), then invite devices with `imbrex cluster invite`.",
        as_json=as_json,
    )


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
        bool, typer.Option("--coordinator", help="Invite another coordinator instead of a device.")
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
    settings = _settings(config, state_dir)
    where = _with_port(address or _own_address(), settings.enrol_port)
    certified = _certified(settings)
    if coordinator and not certified.state.url:
        raise BadConfiguration(
            cause="the cluster's state is in this coordinator's files, which another coordinator "
            "cannot follow",
            cure="Move it to a store first (`imbrex cluster move-state nats://HOST:4222`)",
        )
    invitation = certified.invite(where, timedelta(minutes=minutes), coordinator=coordinator)
    kind, daemon = ("coordinator", "coordinator") if coordinator else ("device", "worker")
    terminal.tell_alone(
        {"token": invitation.token, "minutes": minutes},
        f"{invitation.token}\n",
        f"valid for one {kind}, for {minutes} minutes: imbrex {daemon} --join TOKEN",
        as_json=as_json,
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
        bool, typer.Option("--replace", help="Replace what is there with this coordinator's copy.")
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
    from coordinator.trust.open_state import MOVE
    from protos.daemon.files import alone_in
    from protos.rooms import imported

    settings = _settings(config, state_dir)
    _certified(settings).state.close()
    # A running coordinator would go on with the old place.
    with alone_in(settings.state_dir, "coordinator"):
        shown = imported(MOVE)(settings.state_dir, url, replace=replace)
    where = "in the files of this coordinator" if url == "files" else f"at {shown}"
    terminal.tell({"state": shown}, f"The cluster's state is {where} now.", as_json=as_json)


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
    found = _certified(_settings(config, state_dir)).authority
    pem = found.certificate_pem.decode()
    terminal.tell_alone(
        {"fingerprint": found.fingerprint, "certificate": pem},
        pem,
        f"fingerprint: {found.fingerprint}",
        as_json=as_json,
    )


@app.command()
def certificate(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="The server's host names and addresses.")
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
    from protos.trust.identity import keep_identity, now_utc

    identity = _certified(_settings(config, state_dir)).authority.for_store(names, now_utc())
    try:
        keep_identity(file, identity)
    except OSError as error:
        raise BadConfiguration(
            cause=f"{file} cannot be written: {error.strerror}",
            cure="Name a file in a folder that you may write to",
        ) from error
    terminal.tell(
        {"file": str(file), "expires": identity.expires.isoformat()},
        f"{file} is valid until {identity.expires:%Y-%m-%d}",
        as_json=as_json,
    )


@app.command("list")
def members(config: ConfigOption = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """List the cluster's devices and coordinators, and when their certificates expire."""
    roster = _certified(_settings(config, state_dir)).roster
    kinds = {"device": roster.members(), "coordinator": roster.coordinators()}
    if as_json:
        listed = {
            f"{kind}s": [
                {
                    "id": member.id,
                    "name": member.name,
                    "since": member.since.isoformat(),
                    "expires": member.expires.isoformat(),
                }
                for member in found.values()
            ]
            for kind, found in kinds.items()
        }
        terminal.print_json(listed)
        return
    for kind, found in kinds.items():
        table = terminal.table(kind, "id", "since", "certificate until")
        for member in found.values():
            table.add_row(
                member.name, member.id, f"{member.since:%Y-%m-%d}", f"{member.expires:%Y-%m-%d}"
            )
        if found or kind == "device":
            terminal.out().print(table)


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
    from coordinator.trust import backup as files

    names = files.backup(_settings(config, state_dir).state_dir, file)
    told = f"{len(names)} files are in {file}: keep it safe"
    terminal.tell({"files": names}, told, as_json=as_json)


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
    from coordinator.trust import backup as files

    names = files.restore(file, _settings(config, state_dir).state_dir)
    told = f"{len(names)} files are restored; start the coordinator"
    terminal.tell({"files": names}, told, as_json=as_json)


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
    from coordinator.serving.common.keys import Role

    secret = _keys(config, state_dir).add(name, Role(role.value))
    terminal.tell_alone(
        {"name": name, "role": role.value, "key": secret},
        f"{secret}\n",
        "It is not shown again.",
        as_json=as_json,
    )


@app.command()
def keys(config: ConfigOption = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """List the API keys, without their secrets."""
    found = _keys(config, state_dir).all()
    table = terminal.table("name", "role")
    for key in found:
        table.add_row(key.name, key.role.value)
    terminal.tell(
        {"keys": [{"name": key.name, "role": key.role.value} for key in found]},
        table if found else "no keys: anyone who can reach the coordinator may do everything",
        as_json=as_json,
    )


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the key.")],
    config: ConfigOption = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Revoke an API key at once. When the last key is revoked, anyone may do everything again."""
    known = _keys(config, state_dir)
    known.remove(name)
    left = len(known.all())
    told = f"{left} keys are left" if left else "no key is left: anyone may do everything"
    terminal.tell({"name": name, "keys_left": left}, f"{name} is revoked; {told}", as_json=as_json)


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
    removed = _certified(_settings(config, state_dir)).roster.remove(device)
    terminal.tell(
        {"id": removed.id, "name": removed.name},
        f"{removed.name} ({removed.id}) is no longer a member",
        as_json=as_json,
    )


@app.command()
def confirm(config: ConfigOption = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Put this list of members in force although devices know a newer one.

    Use it after restoring a backup and starting the coordinator: devices ignore an older list,
    since it may name members that were removed later. Remove those first.

    \b
    imbrex cluster list
    imbrex cluster confirm
    """
    roster = _certified(_settings(config, state_dir)).roster
    changed = roster.confirm()
    terminal.tell(
        {"generation": roster.generation, "changed": changed},
        "Every device now accepts this list of members."
        if changed
        else "No device knows a newer list of members.",
        as_json=as_json,
    )


def _settings(config: Path | None, state_dir: Path | None) -> "CoordinatorSettings":
    from coordinator.settings import CoordinatorSettings

    return CoordinatorSettings.load(config, {"state_dir": state_dir})


def _certified(settings: "CoordinatorSettings") -> "Certified":
    from coordinator.trust.trust import Trust

    certified = Trust.load(settings.state_dir).certified
    if certified is None:
        raise BadConfiguration(
            cause=f"there is no cluster authority in {settings.state_dir}",
            cure="Create one with `imbrex cluster init`, or name the coordinator's state "
            "directory with --state-dir",
        )
    return certified


def _keys(config: Path | None, state_dir: Path | None) -> "Keys":
    """The API keys, whose file a running coordinator reloads."""
    from coordinator.serving.common.keys import Keys
    from coordinator.trust.open_state import open_state

    folder = _settings(config, state_dir).state_dir
    folder.mkdir(parents=True, exist_ok=True)
    return Keys(open_state(folder))


def _own_address() -> str:
    from protos.rpc.channels import ELSEWHERE, address_towards

    try:
        return address_towards(*ELSEWHERE)
    except OSError as error:
        raise BadConfiguration(
            cause="this device has no address that others can reach",
            cure="Give the coordinator's address with --address",
        ) from error


def _with_port(address: str, port: int) -> str:
    """`host:port` of an address with or without a port; an IPv6 address in brackets."""
    if address.count(":") > 1 and not address.startswith("["):
        return f"[{address}]:{port}"
    has_port = address.rpartition("]")[2].count(":") == 1
    return address if has_port else f"{address}:{port}"
