"""The worker on the coordinator's own machine: its settings, and how it joins."""

from __future__ import annotations

from coordinator.cluster.trust import Trust
from coordinator.settings import CoordinatorSettings


def environment(settings: CoordinatorSettings, token: str) -> dict[str, str]:
    """Settings of the host's worker: found by us and by nobody else."""
    prefix = "IMBREX_WORKER_"
    return {
        prefix + "HOST": settings.host_worker,
        prefix + "PORT": "0",
        prefix + "STATE_DIR": str(settings.state_dir / "worker"),
        prefix + "NAME": "host",
        prefix + "MDNS": "0",
        prefix + "PACE": str(settings.host_pace),
        prefix + "SECRET": settings.secret,
        prefix + "JOIN": token,
        prefix + "CLUSTER": settings.cluster,
    }


def token(trust: Trust, settings: CoordinatorSettings, port: int) -> str:
    """How it joins: as every other; empty where it has a certificate, or needs none."""
    certified = trust.certified
    kept = settings.state_dir / "worker" / "identity.pem"
    if certified is None or kept.exists():
        return ""
    return certified.invite(f"127.0.0.1:{port}").token
