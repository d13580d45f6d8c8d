"""Problems between machines: who hears, reaches and knows whom. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence

from coordinator.answers import Finding
from coordinator.doctor.findings import Absent, Examined, Patient
from coordinator.trust.roster import CONFIRM

# No home has this many announced devices that cannot be used.
A_FLOOD = 48
# Pairs that are named of those that cannot reach each other; twenty devices have 190.
_MOST_NAMED = 6
_FIREWALL = "Check its firewall (its worker's port, TCP 8470) and the address its worker listens on"
_AP = (
    "Switch off client isolation (also called AP or guest isolation) in the router, or connect "
    "them by cable"
)


def findings(examined: Examined) -> Iterator[Finding]:
    """The problems of the network that can be seen from the coordinator."""
    yield from _flood(examined.strangers)
    yield from _unheard(examined)
    yield from _pairs(examined.patients)
    yield from _shared(examined.patients)
    newer = [patient.name for patient in examined.patients if patient.newer_members]
    if newer:
        cause = f"{', '.join(newer)} have a newer list of members than this coordinator, and "
        cause += "accept the devices on that list"
        yield Finding("stale_members", "warning", "", cause, CONFIRM)
    yield from _loopback(examined.patients)
    for absent in examined.absent:
        yield _absence(absent)
    for name, why in examined.unexamined.items():
        cure = "Check that it is up and runs the same version of imbrex as the coordinator"
        yield Finding("not_examined", "error", name, f"it could not be examined: {why}", cure)
    if not examined.patients:
        cause = "no device is connected"
        cure = "Start `imbrex worker` on one, or list its address: imbrex coordinator --worker"
        yield Finding("no_device", "error", "", cause, cure)
    for cluster in examined.others:
        cause = f"workers of another cluster are announced here: {cluster!r}"
        cure = "Nothing to do, unless they should belong to this cluster: see the setting `cluster`"
        yield Finding("other_cluster", "note", "", cause, cure)


def _flood(strangers: tuple[str, ...]) -> Iterator[Finding]:
    """Far more announcements than a home has workers."""
    if len(strangers) < A_FLOOD:
        return
    hosts = Counter(stranger.rpartition(":")[0] for stranger in strangers)
    most = ", ".join(f"{host} ({count})" for host, count in hosts.most_common(3))
    cause = f"{len(strangers)} addresses are announced over mDNS at which no worker of this "
    cause += f"cluster answers, most of them at {most}; announcements may be forged"
    cure = "Find out which device sends them (tcpdump -i any -e udp port 5353) and take it off the "
    cure += "network; devices that are listed (imbrex coordinator --worker) do not need mDNS"
    yield Finding("announcement_flood", "error", "", cause, cure)


def _unheard(examined: Examined) -> Iterator[Finding]:
    """Blocked multicast: a worker is connected and announces itself, but is not heard."""
    announcing = [p for p in examined.patients if p.condition.announced and p.source != "host"]
    unheard = [patient for patient in announcing if not patient.heard]
    if not examined.listened or not unheard:
        return
    cure = (
        "Switch off client isolation and IGMP snooping in the router or switch, use host "
        "networking in containers; or list workers: imbrex coordinator --worker ADDRESS"
    )
    if len(unheard) == len(announcing):
        cause = "no announcement of a worker arrives, though workers announce themselves: " + (
            "multicast is blocked on this network, or at this machine"
        )
        yield Finding("multicast_blocked", "warning", "", cause, cure)
        return
    for patient in unheard:
        cause = "its announcements don't arrive: multicast is blocked between it and this machine"
        yield Finding("multicast_blocked", "warning", patient.name, cause, cure)


def _loopback(patients: tuple[Patient, ...]) -> Iterator[Finding]:
    """A worker that only its own machine can reach, although there are others."""
    if all(patient.is_loopback for patient in patients):
        return
    for patient in patients:
        if patient.is_loopback:
            cause = f"the other devices cannot reach it at {patient.address}: what they exchange "
            cause += "with it goes through the coordinator"
            cure = "Set host_worker in the coordinator's settings to an address that they reach"
            yield Finding("wrong_interface", "warning", patient.name, cause, cure)


def _shared(patients: tuple[Patient, ...]) -> Iterator[Finding]:
    """Devices that also work for another coordinator."""
    for other in sorted({other for patient in patients for other in patient.coordinators}):
        shared = [patient.name for patient in patients if other in patient.coordinators]
        which = "a copy of this coordinator" if other.is_copy else "the coordinator"
        cause = f"{which} on {other.name} also uses {', '.join(shared)}: neither knows what "
        cause += "the other computes there, and both plan as if the devices were idle"
        cure = "Stop one of them, or give each cluster a name (`cluster`) and its own devices"
        if other.is_copy:
            cure = "Stop it; if it is not yours, make a new cluster "
            cure += "(`imbrex cluster init --replace`)"
        yield Finding("shared_devices", "warning", "", cause, cure)


def _pairs(patients: tuple[Patient, ...]) -> Iterator[Finding]:
    """Devices that the coordinator can reach, but that cannot reach each other."""
    by_id = {patient.id: patient for patient in patients}
    apart: dict[bool, list[tuple[Patient, Patient]]] = {True: [], False: []}
    for patient in patients:
        for other in map(by_id.get, patient.unreached):
            if other is None:
                continue
            if patient.id not in other.unreached:
                yield _one_way(patient, other)
            elif patient.id < other.id:
                wireless = _on_wifi(patient) and _on_wifi(other)
                apart[wireless].append((patient, other))
    for wireless, pairs in apart.items():
        if pairs:
            yield _isolated(pairs, wireless=wireless)


def _one_way(patient: Patient, other: Patient) -> Finding:
    return Finding(
        "one_way",
        "error",
        patient.name,
        f"it cannot reach {other.name} at {other.address}, which reaches it "
        f"({patient.unreached[other.id]})",
        f"On {other.name}: {_FIREWALL[0].lower()}{_FIREWALL[1:]}; until then what they exchange "
        "goes through the coordinator",
    )


def _on_wifi(patient: Patient) -> bool:
    return patient.interface is not None and patient.interface.wireless


def _isolated(pairs: Sequence[tuple[Patient, Patient]], *, wireless: bool) -> Finding:
    """One finding for all pairs: an access point isolates all of its clients."""
    first, other = pairs[0]
    who = ", ".join(f"{one.name} and {another.name}" for one, another in pairs[:_MOST_NAMED])
    more = f" and {len(pairs) - _MOST_NAMED} more pairs" if len(pairs) > _MOST_NAMED else ""
    by = " over Wi-Fi: the access point isolates its clients" if wireless else ""
    return Finding(
        "client_isolation" if wireless else "unreachable_peers",
        "error",
        first.name if len(pairs) == 1 else "",
        f"{who}{more} cannot reach each other{by} ({first.unreached[other.id]})",
        f"{_AP if wireless else 'Check the routes and firewalls between them'}; until then what "
        "they exchange goes through the coordinator",
    )


def _gone(absent: Absent) -> Finding:
    """A device that was at an address and is elsewhere, or nowhere."""
    if absent.moved_to:
        cause = f"it has moved from {absent.address} to {absent.moved_to}"
        cure = "Nothing to do, unless its old address is listed (`workers`): correct it there"
        return Finding("moved", "note", absent.name, cause, cure)
    cause = f"it is off or its worker has stopped; last seen {absent.seen} at {absent.address}"
    cure = "Switch it on, or start its worker: sudo systemctl start imbrex-worker"
    return Finding("unreachable", "error", absent.name, cause, cure)


def _absence(absent: Absent) -> Finding:
    where = absent.address
    if absent.name and not absent.code:
        return _gone(absent)
    if absent.code == "duplicate_id":
        return Finding("duplicate_identity", "error", where, absent.reason, absent.cure)
    if absent.code:
        skew = "protocol" in absent.reason
        code = "version_skew" if skew else absent.code
        return Finding(code, "error", where, absent.reason, absent.cure or "See `imbrex status`")
    if absent.source == "mdns" and not absent.near:
        cause = f"a worker announces {where}, which is outside this machine's networks"
        cure = "On that device, set host or mdns_interfaces to the address that others reach"
        return Finding("wrong_interface", "error", where, cause, cure)
    if absent.source == "mdns":
        cause = f"a worker is announced but does not answer: {absent.reason}"
        cure = f"{_FIREWALL}. If it is on Wi-Fi: {_AP[0].lower()}{_AP[1:]}"
        return Finding("unreachable", "error", where, cause, cure)
    cure = "Check that it is on and that its worker listens there, or correct the list"
    return Finding("unreachable", "error", where, f"it does not answer: {absent.reason}", cure)
