"""Problems of a single machine: power, heat, memory, disk, clocks, cables, Wi-Fi. Pure."""

from collections.abc import Iterator

from coordinator.answers import Finding, Severity
from coordinator.doctor.findings import Patient
from models.tensors.memory import megabytes
from protos import imbrex_pb2 as pb

# Bits of the Raspberry Pi's firmware [its documentation, `vcgencmd get_throttled`]: the present
# state, and sixteen bits higher the same since boot.
UNDER_VOLTAGE, CAPPED, THROTTLED, SOFT_LIMIT = (1 << bit for bit in range(4))
SINCE_BOOT = 16
# Certificates are judged by the clock, and logs of two devices are compared by it.
CLOCK_WARNING_S = 2.0
CLOCK_ERROR_S = 300.0
# Below this the kernel begins to evict the pages of programs; a layer's maps take tens of
# megabytes.
MEMORY_ERROR_BYTES = 64_000_000
MEMORY_WARNING_BYTES = 192_000_000
# Weights of a large network are hundreds of megabytes; logs and updates need some too.
DISK_ERROR_BYTES = 64_000_000
DISK_WARNING_BYTES = 512_000_000
# The share of packets that are lost without harm, as on Wi-Fi or when a switch's queue is full; and
# so many that connections stall.
LOSS_WARNING, LOSS_ERROR = 0.01, 0.05
# Fewer lost ones, or fewer sent since the start, say nothing.
LEAST_LOST, LEAST_SENT = 3, 10_000
# A link comes and goes a few times while a machine starts. Of what happened more often, so many
# changes a day.
LEAST_CHANGES, CHANGES_PER_DAY = 12, 12
_DAY_S = 86_400.0
# Drivers whose `powersave` follows the load, unlike that of all others.
FOLLOWING_DRIVERS = ("intel_pstate", "intel_cpufreq", "amd-pstate", "amd-pstate-epp")


def findings(patient: Patient, version: str) -> Iterator[Finding]:
    """The problems of a device by itself; `version` is the coordinator's."""
    yield from _power(patient)
    yield from _governor(patient)
    yield from _room(patient)
    yield from _clock(patient)
    yield from _network(patient)
    yield from _packets(patient)
    yield from _links(patient)
    if patient.refused_engines:
        yield Finding(
            "engine_refused",
            "warning",
            patient.name,
            f"onnxruntime computes in place of another engine: {patient.refused_engines}",
            "Install another version of that engine there, or set engine = onnxruntime in its "
            "settings",
        )
    lacking = [kept for kept in patient.kept if kept.is_lacking]
    if lacking:
        count = sum(kept.programs for kept in lacking)
        reasons = ", ".join(f"{kept.why} ({kept.programs})" for kept in lacking)
        yield Finding(
            "programs_left",
            "note",
            patient.name,
            f"onnxruntime computes {count} of its programs: {reasons}",
            "Nothing is wrong; with its operators written otherwise the network may be faster",
        )
    if patient.version != version:
        yield Finding(
            "version_skew",
            "warning",
            patient.name,
            f"it runs imbrex {patient.version}, the coordinator {version}",
            "Install the same version on every device",
        )


def _power(patient: Patient) -> Iterator[Finding]:
    flags = patient.condition.power_flags
    before = flags >> SINCE_BOOT
    supply = "Use the official power supply and a short cable; unplug what draws power from USB"
    cooling = "Give it a heat sink or a fan, or more air"
    heat = f" ({patient.celsius:.0f} °C)" if patient.celsius else ""
    if flags & UNDER_VOLTAGE:
        cause = "its voltage is too low now: it slows down and may compute wrong results"
        yield Finding("under_voltage", "error", patient.name, cause, supply)
    elif before & UNDER_VOLTAGE:
        cause = "its voltage has been too low since it started"
        yield Finding("under_voltage", "warning", patient.name, cause, supply)
    elif flags & (CAPPED | THROTTLED | SOFT_LIMIT):
        cause = f"it is throttled now{heat}: it computes slower than it could"
        yield Finding("throttled", "warning", patient.name, cause, cooling)
    elif before & (CAPPED | THROTTLED | SOFT_LIMIT):
        cause = f"it has been throttled since it started{heat}"
        yield Finding("throttled", "note", patient.name, cause, cooling)


def _governor(patient: Patient) -> Iterator[Finding]:
    condition = patient.condition
    cure = (
        "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor, and "
        "the same at every start"
    )
    slow = condition.governor == "powersave" and condition.governor_driver not in FOLLOWING_DRIVERS
    if slow:
        cause = "the governor `powersave` holds its processor at the lowest frequency"
        yield Finding("governor", "warning", patient.name, cause, cure)
    elif condition.governor in ("ondemand", "conservative"):
        cause = f"the governor `{condition.governor}` raises the frequency too late for short tasks"
        yield Finding("governor", "note", patient.name, cause, cure)


def _room(patient: Patient) -> Iterator[Finding]:
    condition = patient.condition
    severity = _short(condition.memory_available_bytes, MEMORY_ERROR_BYTES, MEMORY_WARNING_BYTES)
    if condition.memory_bytes and severity:
        free = megabytes(condition.memory_available_bytes)
        cause = f"{free} of its {megabytes(condition.memory_bytes)} of memory are available"
        cure = "Stop other programs there, or give imbrex less: memory_mb in its settings"
        yield Finding("low_memory", severity, patient.name, cause, cure)
    severity = _short(condition.disk_free_bytes, DISK_ERROR_BYTES, DISK_WARNING_BYTES)
    if condition.disk_bytes and severity:
        cause = (
            f"{megabytes(condition.disk_free_bytes)} are free on the disk that holds its weights"
        )
        cure = "Remove something there (`sudo apt clean`), or lower disk_mb in its settings"
        yield Finding("full_disk", severity, patient.name, cause, cure)


def _short(free: int, error: int, warning: int) -> Severity | None:
    return "error" if free < error else "warning" if free < warning else None


def _clock(patient: Patient) -> Iterator[Finding]:
    off_s = abs(patient.ahead_s) - patient.round_trip_s / 2
    if off_s <= CLOCK_WARNING_S:
        return
    severity: Severity = "error" if off_s > CLOCK_ERROR_S else "warning"
    where = "ahead of" if patient.ahead_s > 0 else "behind"
    cause = f"its clock is {abs(patient.ahead_s):.0f} s {where} the coordinator's"
    cure = "sudo timedatectl set-ntp true, on both: the validity of certificates depends on it"
    yield Finding("clock_skew", severity, patient.name, cause, cure)


def _network(patient: Patient) -> Iterator[Finding]:
    used = patient.interface
    if used is None:
        return
    if used.wireless and used.saves_power:
        yield Finding(
            "wifi_power_saving",
            "warning",
            patient.name,
            f"its Wi-Fi ({used.name}) sleeps between packets, which delays every message",
            f"sudo iw dev {used.name} set power_save off, and the same at every start "
            "(NetworkManager: wifi.powersave = 2)",
        )
    if used.connected and 0 < used.mbps < used.port_mbps and used.mbps <= 100:
        yield Finding(
            "slow_cable",
            "warning",
            patient.name,
            f"{used.name} runs at {used.mbps} Mbit/s but could run at {used.port_mbps}",
            "Use a cable with all eight wires (Cat 5e), in a port of the switch that is as fast",
        )
    wired = [i for i in patient.condition.interfaces if _is_wired(i)]
    if used.wireless and wired:
        other = wired[0]
        yield Finding(
            "wrong_interface",
            "warning",
            patient.name,
            f"it is reached by Wi-Fi ({patient.address}) though a cable is plugged into "
            f"{other.name} ({other.addresses[0]})",
            f"Have its worker listen there: host = {other.addresses[0]} in its settings",
        )


def _packets(patient: Patient) -> Iterator[Finding]:
    """Packets that it sent and that were lost: during the examination, or since its start."""
    now, before = patient.condition, patient.before
    if before is not None:
        share = _lost(
            now.segments_sent - before.segments_sent, now.segments_resent - before.segments_resent
        )
        if share >= LOSS_WARNING:
            severity: Severity = "error" if share >= LOSS_ERROR else "warning"
            cause = f"{share:.0%} of the packets that it sends are lost"
            yield Finding("packet_loss", severity, patient.name, cause, _cable_cure(patient))
            return
    share = _lost(now.segments_sent, now.segments_resent)
    if now.segments_sent >= LEAST_SENT and share >= LOSS_WARNING:
        cause = f"{share:.0%} of the packets that it has sent since it started were lost"
        yield Finding("packet_loss", "note", patient.name, cause, _cable_cure(patient))


def _lost(sent: int, resent: int) -> float:
    """The share of lost packets; 0 if that says nothing, as counters that went back."""
    return min(1.0, resent / sent) if sent > 0 and resent >= LEAST_LOST else 0.0


def _links(patient: Patient) -> Iterator[Finding]:
    days = max(1.0, patient.condition.up_s / _DAY_S)
    for link in filter(_is_wired, patient.condition.interfaces):
        changes = link.carrier_changes
        if changes >= max(LEAST_CHANGES, CHANGES_PER_DAY * days):
            cause = f"since it started, {link.name} has come and gone {changes // 2} times"
            yield Finding("link_flaps", "warning", patient.name, cause, _cable_cure(patient, link))


def _cable_cure(patient: Patient, link: pb.Interface | None = None) -> str:
    """What to do about a link that loses packets or itself."""
    used = link or patient.interface
    if used is not None and used.wireless:
        return "Move it closer to the access point, use its other band (2.4 or 5 GHz), or a cable"
    name = used.name if used is not None else "eth0"
    saving = f"sudo ethtool --set-eee {name} eee off; on a Raspberry Pi, dtparam=eee=off in "
    saving += "/boot/firmware/config.txt does so at every start"
    cable = "another cable, and another port of the switch"
    if used is not None and used.saves_energy:
        return f"Switch Energy-Efficient Ethernet off, which is active: {saving}. Else try {cable}"
    return f"Try {cable}; then switch Energy-Efficient Ethernet off: {saving}"


def _is_wired(interface: pb.Interface) -> bool:
    """Whether it could be reached through this cable."""
    return interface.connected and not interface.wireless and bool(interface.addresses)
