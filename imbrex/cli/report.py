"""`imbrex bench --report`: a cluster measured for others to plan with: its speeds, links and costs,
and how much faster it is than one of its devices.

Nothing in a report tells whose it is: devices are numbered, and of what they say of themselves only
what decides how fast they are is kept.
"""

import json
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.costs.cluster import Cluster, Device, EndpointOverhead, Link
from coordinator.costs.regression import DeviceProfile, RegressionCosts
from coordinator.devices.describe import describe
from coordinator.planning.cluster_file import HOST, speed_of
from imbrex import terminal
from imbrex.cli import bench, measuring, profile
from imbrex.cli.provenance import provenance
from imbrex.client import Client
from imbrex.described import cluster_of, require_writable, write
from protos.errors import Unavailable
from protos.wire.facts import DeviceId

FORMAT = 1
# A small network, and one that is worth dividing.
MODELS = ("digits", "resnet50")
# Whatever `auto` chooses, `halo` shows what messages between devices cost.
STRATEGIES = ("halo", "auto")
# What decides how fast a device is, of the facts that its profile keeps.
_FACTS = ("cpu", "machine", "cores", "mhz_max", "pace", "threads", "concurrency")
_ENGINE = ("engine", "processor", "runtime")
_RESULT = (
    *("strategy", "devices", "latency_s", "speedup", "predicted_latency_s", "prediction_error"),
    *("samples_s", "bytes", "planned_bytes", "max_rel_error"),
)
_PROBED_S, _POLL_S = 60.0, 0.25

_NOT_MEASURED = "not measured: what an x86-64 core needs"
_OBSERVED = "the requests of this report (an average in which later ones count more)"


def report(models: Sequence[str], url: str, asked: measuring.MeasureOptions, target: Path) -> int:
    """Measures what is not measured yet, then the models; writes the report. 1 if answers differ.

    Raises:
        BadConfiguration: the file cannot be written.
        Unavailable: there is no device to measure, or one cannot be measured.
    """
    require_writable(target, "--report")
    posed = {model: measuring.question(model, asked.seed) for model in models}
    with Client(url) as client:
        _require_measured(client)
        found = []
        for model, question in posed.items():
            found.append(measuring.measure(client, model, question, asked))
            bench.show(found[-1])
        between_devices = any(
            sample.bytes["halo"]
            for measured in found
            for case in measured.cases
            for sample in case.samples
        )
        files = client.cluster_files("report")
        cluster = _anonymous(cluster_of(files.file, files.profiles, "of the coordinator"))
        described = describe(cluster, "report")
        document = {
            "format": FORMAT,
            "kinds": list(_kinds(cluster, between_devices)),
            "speedups": [_speedups(measured) for measured in found],
            "condition": _condition(client),
            "made": _made(client),
            "cluster": {"file": described.text, "profiles": described.profiles},
        }
    write(target, json.dumps(document, indent=1, allow_nan=False) + "\n", "--report")
    terminal.out().print(f"report: {target}; docs/hardware.md says where to send it")
    return 0 if all(measured.same for measured in found) else 1


def _require_measured(client: Client) -> None:
    """Every device has a profile, and its link was probed after that."""
    ready = [device for device in client.devices() if device.state == "ready"]
    if all(device.host for device in ready):
        raise Unavailable(
            cause="no device is ready beside the coordinator's own: there is no link to measure",
            cure="Start `imbrex worker` on another device, and see `imbrex status`",
        )
    # Alike devices share a profile.
    missing = {
        device.fingerprint: device
        for device in ready
        if client.profile(device.id).state != "measured"
    }.values()
    for device in missing:
        if not client.profile(device.id).under_way:
            client.profile_again(device.id)
    for state in profile.wait(client, {device.id: device.name for device in missing}):
        if state["state"] != "measured":
            told = state["error"] or {"cause": state["state"]}
            raise Unavailable(
                cause=f"{state['name']} cannot be measured: {told['cause']}",
                cure=f"See `imbrex profile --device {state['name']}` and `imbrex doctor`",
            )
    pause, deadline = threading.Event(), time.monotonic() + _PROBED_S
    with terminal.waiting("probing the links"):
        while not all(device.profiled for device in client.devices() if device.state == "ready"):
            if time.monotonic() > deadline:
                raise Unavailable(
                    cause=f"the links had not been probed after {_PROBED_S:.0f} s",
                    cure="Send no requests meanwhile: links are probed when nothing is computed",
                )
            pause.wait(_POLL_S)


def _anonymous(cluster: Cluster) -> Cluster:
    """The same with numbers for names, and profiles that only tell of speeds."""
    return replace(
        cluster,
        devices=tuple(
            replace(
                device,
                id=HOST if device.host else DeviceId(f"device-{number}"),
                name=HOST if device.host else f"device-{number}",
                costs=RegressionCosts(replace(known, fingerprint=_facts(known)))
                if (known := _profile(device))
                else device.costs,
            )
            for number, device in enumerate(cluster.devices, start=1)
        ),
    )


def _profile(device: Device) -> DeviceProfile | None:
    return device.costs.profile if isinstance(device.costs, RegressionCosts) else None


def _facts(known: DeviceProfile) -> dict[str, str]:
    return {key: known.fingerprint[key] for key in (*_FACTS, *_ENGINE) if key in known.fingerprint}


def _kinds(cluster: Cluster, between_devices: bool) -> Iterator[dict[str, Any]]:
    """Devices that compute alike, the most numerous first: a preset for each kind."""
    groups: dict[tuple[tuple[str, str], ...], list[Device]] = {}
    for device in cluster.devices:
        if known := _profile(device):
            groups.setdefault(tuple(known.fingerprint.items()), []).append(device)
    wires = [device.link for device in cluster.devices if not device.host]
    for facts, devices in sorted(groups.items(), key=lambda group: -len(group[1])):
        away = [device for device in devices if not device.host]
        own = [device.link for device in away] or wires
        numbers = _numbers(devices, away or devices, own, between_devices)
        told = {key: {"value": value, "how": how} for key, (value, how) in numbers.items()}
        medium = {"value": cluster.medium, "how": "as the coordinator was told"}
        yield {"devices": len(devices), **dict(facts), "preset": {**told, "medium": medium}}


def _numbers(
    devices: Sequence[Device], ends: Sequence[Device], wires: Sequence[Link], between_devices: bool
) -> dict[str, tuple[float, str]]:
    """A preset's numbers, by their names there, each with how it was measured."""

    def middle(of: Callable[[EndpointOverhead], float]) -> float:
        return _rounded(of(end.link.far) for end in ends)

    def side(of: Callable[[EndpointOverhead], float]) -> float:
        """Of either end: how both are divided is assumed, what they need together is not."""
        return _rounded(
            max(of(link.far), (of(link.near) + of(link.far)) / 2)
            for link in (end.link for end in ends)
        )

    message_ms = side(lambda end: end.message_s * 1e3)

    known = _profile(devices[0])
    assert known is not None, "kinds are told apart by their profiles"
    samples = sum(fit.samples for fit in known.fits.values())
    computes = _rounded(speed_of(device.costs) * device.concurrency * 1e-9 for device in devices)
    weights = known.fits.get("fully_connected")
    return {
        "gflops": (
            computes,
            f"a 3x3 convolution of 128 channels, by a fit to {samples} layers that were timed on "
            f"one device; {known.blocks} fused blocks are off by {known.block_mape:.1%}",
        ),
        "mbps": (
            _rounded(link.bytes_per_s * 8e-6 for link in wires),
            f"pings of 16 KB to 1 MB each way, less what the ends need; median of {len(wires)} "
            "links",
        ),
        "latency_ms": (
            _rounded(max(0.0, link.fixed_s * 1e3 - 2 * message_ms) for link in wires),
            "empty pings, one way, less what both ends need",
        ),
        "message_ms": (
            message_ms,
            "six pings at once: each after the first takes what the slower end needs; at least "
            "half of what both need for an empty one",
        ),
        "byte_ns": (
            side(lambda end: end.byte_s * 1e9),
            "large pings one by one, less a train of four (over loopback: not measured)",
        ),
        "peer_message_ms": (
            middle(lambda end: end.to_peers.message_s * 1e3),
            f"{_OBSERVED}: from a task's end until its reader is full, less the wire; half of it"
            if between_devices
            else _NOT_MEASURED,
        ),
        "peer_byte_ns": (middle(lambda end: end.to_peers.byte_s * 1e9), _NOT_MEASURED),
        "task_ms": (
            middle(lambda end: end.task_s * 1e3),
            f"{_OBSERVED}: from when a task has its input until its kernels run",
        ),
        "set_up_ms": (middle(lambda end: end.set_up_s * 1e3), _NOT_MEASURED),
        "describe_ms": (_rounded(link.near.task_s * 1e3 for link in wires), _NOT_MEASURED),
        "weight_ns": (
            _rounded([weights.rates.weight_byte_s * 1e9]),
            f"a fit to {weights.samples} fully connected layers, off by {weights.mape:.1%}",
        )
        if weights
        else (0.0, "not measured: no fully connected layer was timed"),
    }


def _rounded(values: Iterator[float] | Sequence[float]) -> float:
    """The median, to four digits."""
    return float(f"{statistics.median(values):.4g}")


def _speedups(found: measuring.Found) -> dict[str, Any]:
    """Without the names of devices, and without reasons, which may name some."""
    results = [bench.result(case, found.about, {}) for case in found.cases]
    return {
        "model": found.about["model"],
        "repeat": found.about["repeat"],
        "one_device_s": [round(seconds, 6) for seconds in found.alone_s],
        "how": "the whole model on the best device by its fastest engine, in turns with the rest",
        "results": [{key: result[key] for key in _RESULT if key in result} for result in results],
    }


def _condition(client: Client) -> dict[str, Any]:
    """Whether the devices were well, after all that work."""
    ready = [device for device in client.devices() if device.state == "ready"]
    with terminal.waiting("asking the doctor"):
        found = {(finding.code, finding.severity) for finding in client.doctor().findings}
    return {
        "throttled_devices": sum(device.throttled for device in ready),
        "celsius_at_most": max((device.celsius for device in ready), default=0.0),
        "findings": [{"code": code, "severity": severity} for code, severity in sorted(found)],
    }


def _made(client: Client) -> Mapping[str, Any]:
    """By what: versions, and the system of the computer that ran the command."""
    system = platform.system()
    with suppress(OSError):
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    made = {key: value for key, value in provenance().items() if key != "command"}
    return {"coordinator": client.version(), "system": system, "kernel": platform.release(), **made}
