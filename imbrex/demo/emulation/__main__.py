"""Runs a daemon on an emulated computer: executes `imbrex worker --config FILE`, or a coordinator
with its host worker, slowed down as a file says (its keys: `Emulation`).

    python -m imbrex.demo.emulation EMULATION.toml python -m imbrex worker --config worker.toml
"""

import argparse
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from coordinator.costs.rates import RateCosts
from coordinator.devices.host_worker import WORKER, HostHardware
from coordinator.serving.daemon import serve as serve_coordinator
from coordinator.settings import CoordinatorSettings
from imbrex.demo.emulation.emulated_link import SlowEndpoint
from imbrex.demo.emulation.runtime import EmulatedRuntime
from imbrex.demo.emulation.settings import Emulation, command, load_emulation
from imbrex.demo.emulation.throttle import EmulatedThrottle
from imbrex.described import find_planners_here
from protos.daemon.logs import log_to_stderr
from protos.daemon.parent import follow_parent
from worker.daemon import WorkerHardware
from worker.daemon import serve as serve_worker
from worker.engines.base import Engine, Place
from worker.settings import WorkerSettings


@dataclass(frozen=True)
class EmulatedHardware(WorkerHardware):
    """The hardware of an emulated worker, which computes with the engines of `costs`, onnxruntime
    as on Arm.
    """

    costs: RateCosts = field(default=RateCosts(1.0))
    set_up_s: float = 0.0

    def make_engine(self, place: Place) -> Engine:
        """The engine."""
        return EmulatedRuntime(place, self.costs, self.set_up_s)


def worker_hardware(settings: WorkerSettings, emulation: Emulation) -> WorkerHardware:
    """The hardware of an emulated worker."""
    throttle = EmulatedThrottle(settings.pace, emulation)
    set_up_s = emulation.set_up_ms * 1e-3
    hardware = EmulatedHardware(throttle, endpoint=endpoint(emulation), set_up_s=set_up_s)
    return replace(hardware, costs=emulation.rates.costs) if emulation.rates else hardware


def endpoint(emulation: Emulation) -> SlowEndpoint:
    """The cost of messages on an emulated computer."""
    return SlowEndpoint(
        message_s=emulation.message_ms * 1e-3,
        byte_s=emulation.byte_ns * 1e-9,
        peer_message_s=emulation.peer_message_ms * 1e-3,
        peer_byte_s=emulation.peer_byte_ns * 1e-9,
        describe_s=emulation.describe_ms * 1e-3,
    )


def main() -> int:
    """Runs the daemon; returns the exit code."""
    file = Path(sys.argv[1])
    told = sys.argv[2:]
    parser = argparse.ArgumentParser(prog=f"imbrex (emulated as {file} says)")
    parser.add_argument("daemon", choices=("worker", "coordinator"))
    parser.add_argument("--config", type=Path)
    said = parser.parse_args(told[told.index("imbrex") + 1 :])
    emulation = load_emulation(file)
    follow_parent()
    if said.daemon == "worker":
        settings = WorkerSettings.load(said.config, {"concurrency": 1})
        return serve_worker(settings, worker_hardware(settings, emulation))
    find_planners_here()
    settings_of_all = CoordinatorSettings.load(said.config)
    log_to_stderr(as_json=settings_of_all.log == "json")
    own_worker = (*command(file), *WORKER)
    serve_coordinator(settings_of_all, HostHardware(endpoint(emulation), own_worker))
    return 0


if __name__ == "__main__":
    sys.exit(main())
