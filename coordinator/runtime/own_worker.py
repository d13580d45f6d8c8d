"""The worker on the coordinator's own machine: its settings and its join token."""

from __future__ import annotations

from coordinator.cluster.trust import Trust
from coordinator.settings import CoordinatorSettings


def environment(settings: CoordinatorSettings, token: str) -> dict[str, str]:
    """Settings of the host worker, which only this coordinator can find."""
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
    """The host worker's join token; empty if it has a certificate or needs none."""
    certified = trust.certified
    kept = settings.state_dir / "worker" / "identity.pem"
    if certified is None or kept.exists():
        return ""
    return certified.invite(f"127.0.0.1:{port}").token
