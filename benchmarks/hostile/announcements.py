"""Workers that are announced and do not exist (H9)."""

from __future__ import annotations

import time

import httpx
from zeroconf import IPVersion, ServiceInfo, Zeroconf
from zeroconf._protocol.outgoing import DNSOutgoing
from zeroconf.const import _FLAGS_AA, _FLAGS_QR_RESPONSE

from benchmarks.hostile.attacks import Happened, Target, attack, comes_true
from coordinator.devices import children
from coordinator.devices.discovery import SERVICE_TYPE

COUNT = 1000
FOUND_S = 10.0


def forged(cluster: str, number: int) -> DNSOutgoing:
    """An announcement of a worker at a closed port of this machine, or at an address that nobody
    has.
    """
    host = f"127.77.{number // 200}.{number % 200 + 1}" if number % 4 else f"192.0.2.{number % 250}"
    info = ServiceInfo(
        SERVICE_TYPE,
        f"made-up-{number}-{cluster}.{SERVICE_TYPE}",
        port=9,
        properties={"txtvers": "1", "id": f"made-up-{number}", "cluster": cluster},
        server=f"made-up-{number}.local.",
        parsed_addresses=[host],
    )
    out = DNSOutgoing(_FLAGS_QR_RESPONSE | _FLAGS_AA)
    for record in (info.dns_pointer(), info.dns_service(), info.dns_text(), *info.dns_addresses()):
        out.add_answer_at_time(record, 0)
    return out


@attack(
    "H9",
    "devices that are known stay, a new one is in within 10 s, the doctor names the flood",
    place="announced",
)
def a_flood_of_announcements(target: Target) -> Happened:
    """1,000 forged announcements at once; then a genuine device is started."""
    cluster = str(target.settings["cluster"])
    sender = Zeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)
    try:
        for number in range(COUNT):
            sender.send(forged(cluster, number))
            if number % 50 == 0:
                time.sleep(0.005)  # a socket's buffer is short
        ended_s = time.monotonic()
        state = target.folder / "genuine"
        config = target.folder / "worker-1.toml"
        arguments = ["worker", "--name", "genuine", "--port", "0", "--mdns"]
        arguments += ["--config", str(config), "--state-dir", str(state)]
        child = children.start("genuine", arguments, state, state / "ready.json")
        try:
            return _seen(target, child, ended_s)
        finally:
            children.stop([child])
    finally:
        sender.close()


def _seen(target: Target, child: children.Child, ended_s: float) -> Happened:
    with httpx.Client(base_url=target.url, timeout=60) as client:
        states: dict[str, str] = {}
        started_s = 0.0

        def is_in() -> bool:
            nonlocal states, started_s
            if not started_s and child.ready() is not None:
                started_s = time.monotonic()
            rows = client.get("/v1/devices").json()["devices"]
            states = {row["name"]: row["state"] for row in rows}
            return states.get("genuine") == "ready"

        comes_true(is_in, 6 * FOUND_S)
        seconds = time.monotonic() - max(ended_s, started_s)
        codes = {finding["code"] for finding in client.get("/v1/doctor").json()["findings"]}
    known = [states.get(name) for name in ("worker-1", "worker-2")]
    ok = known == ["ready"] * 2 and states.get("genuine") == "ready" and seconds < FOUND_S
    told = f"known: {known}, {len(states)} rows; the new one ready after {seconds:.1f} s"
    told += ", the flood named" if "announcement_flood" in codes else ", the flood not named"
    return Happened(ok and "announcement_flood" in codes, told, {"found_s": seconds})
