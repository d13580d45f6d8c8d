"""Where the cluster's state is: in files of this coordinator, or in a store of several, which is an
optional package: all that it offers is named here.
"""

from pathlib import Path

from coordinator.trust.cluster_state import FOLDER, STATE_FILE, ClusterState
from protos.rooms import imported

MODEL_STORE = "coordinator.several.shared_store:SharedStore"
FOLLOWER = "coordinator.several.follower:Follower"
JOIN = "coordinator.several.joining:join"
MOVE = "coordinator.several.joining:move"
_SHARED = "coordinator.several.replicated:shared_state"


def open_state(state_dir: Path) -> ClusterState:
    """The state of the coordinator with this state directory: shared, if that says where.

    Raises:
        BadConfiguration: the file that says where is damaged.
        NotFound: it is shared, and the package for several coordinators is not installed.
    """
    if not (state_dir / FOLDER / STATE_FILE).exists():
        return ClusterState(state_dir)
    shared: ClusterState | None = imported(_SHARED)(state_dir)
    return shared or ClusterState(state_dir)
