"""The work of `imbrex cluster`: the files of the cluster's trust, which a running coordinator
reloads.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from coordinator.settings import CoordinatorSettings
from coordinator.trust.authority import Authority
from coordinator.trust.backup import backup, restore
from coordinator.trust.roster import Member
from coordinator.trust.trust import Certified, Trust
from imbrex import terminal
from protos.daemon.files import alone_in
from protos.errors import BadConfiguration
from protos.rpc.channels import ELSEWHERE, address_towards
from protos.trust.identity import keep_identity, now_utc


def init(config: Path | None, state_dir: Path | None, *, replace: bool, as_json: bool) -> int:
    """Creates the authority if there is none, or replaces it."""
    folder = _settings(config, state_dir).state_dir
    aside: Path | None = None
    found = None if replace else Authority.load(folder)
    if replace:
        authority, aside = Authority.replace(folder, now_utc())
    else:
        authority = found or Authority.make(folder, now_utc())
    if as_json:
        made = {"fingerprint": authority.fingerprint, "changed": found is None}
        terminal.print_json(made)
        return 0
    if aside is not None:
        terminal.out().print(f"The old one is in {aside}.", highlight=False)
    said = "The cluster already has an authority." if found else "The cluster has an authority now."
    terminal.out().print(
        f"{said}\nfingerprint: {authority.fingerprint}\n"
        "Start the coordinator (again), then invite devices with `imbrex cluster invite`.",
        highlight=False,
    )
    return 0


def invite(
    config: Path | None,
    state_dir: Path | None,
    address: str | None,
    minutes: int,
    *,
    coordinator: bool,
    as_json: bool,
) -> int:
    """Prints a join token, alone on standard output."""
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
    if as_json:
        terminal.print_json({"token": invitation.token, "minutes": minutes})
        return 0
    print(invitation.token)
    kind = "coordinator" if coordinator else "device"
    daemon = "coordinator" if coordinator else "worker"
    terminal.err().print(
        f"valid for one {kind}, for {minutes} minutes: imbrex {daemon} --join TOKEN",
        highlight=False,
    )
    return 0


def move_state(
    config: Path | None, state_dir: Path | None, url: str, *, replace: bool, as_json: bool
) -> int:
    """Moves the cluster's state."""
    from coordinator.trust.joining import move
    from coordinator.trust.nats_store import StoreAddress

    settings = _settings(config, state_dir)
    _certified(settings).state.close()
    folder = settings.state_dir
    # A running coordinator would go on with the old place.
    with alone_in(folder, "coordinator"):
        move(folder, url, replace=replace)
    shown = url if url == "files" else StoreAddress(url).without_password
    if as_json:
        terminal.print_json({"state": shown})
    else:
        where = "in the files of this coordinator" if url == "files" else f"at {shown}"
        terminal.out().print(f"The cluster's state is {where} now.", highlight=False)
    return 0


def authority(config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    """Prints the authority's certificate, alone on standard output."""
    found = _certified(_settings(config, state_dir)).authority
    pem = found.certificate_pem.decode()
    if as_json:
        terminal.print_json({"fingerprint": found.fingerprint, "certificate": pem})
        return 0
    print(pem, end="")
    terminal.err().print(f"fingerprint: {found.fingerprint}", highlight=False)
    return 0


def certificate(
    config: Path | None, state_dir: Path | None, names: list[str], file: Path, *, as_json: bool
) -> int:
    """Writes an identity for a server of the store of the cluster's state."""
    identity = _certified(_settings(config, state_dir)).authority.for_store(names, now_utc())
    try:
        keep_identity(file, identity)
    except OSError as error:
        raise BadConfiguration(
            cause=f"{file} cannot be written: {error.strerror}",
            cure="Name a file in a folder that you may write to",
        ) from error
    if as_json:
        terminal.print_json({"file": str(file), "expires": identity.expires.isoformat()})
    else:
        terminal.out().print(f"{file} is valid until {identity.expires:%Y-%m-%d}", highlight=False)
    return 0


def members(config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    """Prints the members."""
    roster = _certified(_settings(config, state_dir)).roster
    devices, coordinators = (list(e.values()) for e in (roster.members(), roster.coordinators()))
    if as_json:
        terminal.print_json(
            {"devices": list(map(_json, devices)), "coordinators": list(map(_json, coordinators))}
        )
        return 0
    for kind, found in (("device", devices), ("coordinator", coordinators)):
        table = terminal.table(kind, "id", "since", "certificate until")
        for each in found:
            table.add_row(each.name, each.id, f"{each.since:%Y-%m-%d}", f"{each.expires:%Y-%m-%d}")
        if found or kind == "device":
            terminal.out().print(table)
    return 0


def remove(config: Path | None, state_dir: Path | None, device: str, *, as_json: bool) -> int:
    """Removes a device or a coordinator from the list of members."""
    removed = _certified(_settings(config, state_dir)).roster.remove(device)
    if as_json:
        terminal.print_json({"id": removed.id, "name": removed.name})
    else:
        terminal.out().print(f"{removed.name} ({removed.id}) is no longer a member")
    return 0


def confirm(config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    """Puts this list of members in force if devices know a newer one."""
    roster = _certified(_settings(config, state_dir)).roster
    changed = roster.confirm()
    if as_json:
        terminal.print_json({"generation": roster.generation, "changed": changed})
    elif changed:
        terminal.out().print("Every device now accepts this list of members.", highlight=False)
    else:
        terminal.out().print("No device knows a newer list of members.", highlight=False)
    return 0


def save(config: Path | None, state_dir: Path | None, file: Path, *, as_json: bool) -> int:
    """Writes a backup."""
    names = backup(_settings(config, state_dir).state_dir, file)
    return _tell(names, f"{len(names)} files are in {file}: keep it safe", as_json=as_json)


def put_back(config: Path | None, state_dir: Path | None, file: Path, *, as_json: bool) -> int:
    """Restores a backup."""
    names = restore(file, _settings(config, state_dir).state_dir)
    return _tell(names, f"{len(names)} files are restored; start the coordinator", as_json=as_json)


def _tell(names: list[str], told: str, *, as_json: bool) -> int:
    if as_json:
        terminal.print_json({"files": names})
    else:
        terminal.out().print(told, highlight=False)
    return 0


def _json(member: Member) -> dict[str, str]:
    return {
        "id": member.id,
        "name": member.name,
        "since": member.since.isoformat(),
        "expires": member.expires.isoformat(),
    }


def _settings(config: Path | None, state_dir: Path | None) -> CoordinatorSettings:
    return CoordinatorSettings.load(config, {"state_dir": state_dir})


def _certified(settings: CoordinatorSettings) -> Certified:
    certified = Trust.load(settings.state_dir).certified
    if certified is None:
        raise BadConfiguration(
            cause=f"there is no cluster authority in {settings.state_dir}",
            cure="Create one with `imbrex cluster init`, or name the coordinator's state "
            "directory with --state-dir",
        )
    return certified


def _own_address() -> str:
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
