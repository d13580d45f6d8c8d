"""What was looked at on each device, and whether it is in order: the doctor's check list. Pure.

A row is as bad as the worst finding of its codes; the causes and cures are the findings' alone.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from coordinator.answers import Check, Finding, State
from coordinator.doctor.findings import Absent, Examined, Patient
from models.tensors.memory import megabytes

_WORST = ("error", "warning", "note")


class _Row(NamedTuple):
    """Something that was looked at, the codes of its problems, and what was seen."""

    what: str
    codes: tuple[str, ...]
    seen: str
    state: State = "ok"


def checks(examined: Examined, found: Sequence[Finding]) -> Iterator[Check]:
    """The rows of every device, connected or not."""
    for patient in sorted(examined.patients, key=lambda patient: patient.name):
        for row in _looked_at(examined, patient):
            codes = [
                finding.severity
                for finding in found
                if finding.device == patient.name and finding.code in row.codes
            ]
            states: list[State] = [*codes, row.state]
            worst = min(states, key=(*_WORST, "ok").index)
            yield Check(patient.name, patient.address, row.what, row.seen, worst)
    for name, why in examined.unexamined.items():
        yield Check(name, "", "connection", why, "error")
    for absent in examined.absent:
        state: State = "note" if absent.moved_to and not absent.code else "error"
        yield Check(
            absent.name or absent.address, absent.address, "connection", _gone(absent), state
        )


def _gone(absent: Absent) -> str:
    if absent.moved_to and not absent.code:
        return f"moved to {absent.moved_to}"
    if not absent.seen:
        return "refused" if absent.code else "no answer"
    rate = f"; computed at {absent.gflops:.1f} GFLOP/s" if absent.gflops else ""
    return f"last seen {absent.seen}{rate}"


def _looked_at(examined: Examined, patient: Patient) -> Iterator[_Row]:
    condition = patient.condition
    yield _Row("connection", ("not_examined",), f"answers in {patient.round_trip_s * 1e3:.1f} ms")
    yield _Row("results", ("quarantined",), "compared with the coordinator's")
    flags = condition.power_flags
    power = f"firmware flags {flags:#x}" if flags else "no low voltage reported"
    yield _Row("power", ("under_voltage",), power)
    heat = f"{patient.celsius:.0f} °C" if patient.celsius else "not reported"
    yield _Row("temperature", ("throttled",), heat)
    yield _Row("governor", ("governor",), condition.governor or "not reported")
    yield _Row(
        "memory", ("low_memory",), _free(condition.memory_available_bytes, condition.memory_bytes)
    )
    yield _Row("disk", ("full_disk",), _free(condition.disk_free_bytes, condition.disk_bytes))
    yield _Row("clock", ("clock_skew",), f"{patient.ahead_s:+.1f} s")
    cable = ("wifi_power_saving", "slow_cable", "wrong_interface")
    yield _Row("network", cable, _interface(patient))
    sent, resent = condition.segments_sent, condition.segments_resent
    packets = f"{resent} of {sent} were sent again since it started" if sent else "not reported"
    yield _Row("packets", ("packet_loss", "link_flaps"), packets)
    there = {other.id for other in examined.patients} - {patient.id}
    missed = there & patient.unreached.keys()
    reached = f"reaches {len(there) - len(missed)} of {len(there)}"
    yield _Row("neighbours", (), reached, "error" if missed else "ok")
    if examined.listened and condition.announced and patient.source != "host":
        heard = "heard" if patient.heard else "not heard"
        state: State = "ok" if patient.heard else "warning"
        yield _Row("announcements", ("multicast_blocked",), heard, state)
    yield _Row("engine", ("engine_refused", "programs_left"), _engine(patient))
    yield _Row("version", ("version_skew",), patient.version)
    others = ", ".join(sorted(other.name for other in patient.coordinators))
    seen = f"works for {others}, too" if others else "works for this one only"
    yield _Row("coordinators", (), seen, "warning" if others else "ok")
    if patient.newer_members:
        yield _Row("members", (), "has a newer list", "warning")


def _engine(patient: Patient) -> str:
    faster = f", {patient.engine_speedup:.1f} times as fast as onnxruntime"
    if patient.engines:
        computed = (
            f"{share.programs} programs by {share.name}, {share.speedup:.1f} times as fast as "
            "onnxruntime"
            for share in patient.engines
        )
        return "; ".join(computed)
    refused = ", another one was refused" if patient.refused_engines else ""
    limits = f", {patient.limits}" if patient.limits else ""
    return f"{patient.engine}{faster if patient.engine_speedup else ''}{limits}{refused}"


def _free(free: int, total: int) -> str:
    return f"{megabytes(free)} of {megabytes(total)} free" if total else "not reported"


def _interface(patient: Patient) -> str:
    used = patient.interface
    if used is None:
        return "this machine" if patient.is_loopback else "not reported"
    speed = "Wi-Fi" if used.wireless else f"{used.mbps} Mbit/s" if used.mbps else "cable"
    return f"{used.name}, {speed}{', Energy-Efficient Ethernet' if used.saves_energy else ''}"
