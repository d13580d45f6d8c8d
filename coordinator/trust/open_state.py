"""Where the cluster's state is: in files of this coordinator, or in a store of several."""

from pathlib import Path

from coordinator.trust.cluster_state import FOLDER, STATE_FILE, ClusterState


def open_state(state_dir: Path) -> ClusterState:
    """The state of the coordinator with this state directory: shared, if that says where.

    Raises:
        BadConfiguration: the file that says where is damaged.
    """
    if not (state_dir / FOLDER / STATE_FILE).exists():
        return ClusterState(state_dir)
    from coordinator.trust.replicated import Replicated, address_of  # which needs NATS

    address = address_of(state_dir)
    return ClusterState(state_dir) if address is None else Replicated(state_dir, address)
