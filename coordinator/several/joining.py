"""How this coordinator joins a cluster that has one, and how a cluster's state moves."""

import asyncio
import hmac
from pathlib import Path

import structlog

from coordinator.several.nats_store import StoreAddress
from coordinator.several.replicated import Replicated, record
from coordinator.trust.authority import JOINED_FILE, Authority
from coordinator.trust.cluster_state import (
    DEFAULTS,
    DOCUMENTS,
    FOLDER,
    MODELS,
    STATE_FILE,
    ClusterState,
    Entries,
    changing,
    read_entries,
)
from coordinator.trust.open_state import open_state
from coordinator.trust.trust import Trust, own_name
from protos.errors import BadConfiguration, ImbrexError
from protos.rpc.enrolment import enrol_coordinator
from protos.trust.identity import keep_identity, secret_hash
from protos.trust.invitation import Invitation

log = structlog.get_logger(__name__)


async def join(state_dir: Path, token: str) -> None:
    """Makes this one of the cluster's coordinators, once: the same token in the settings is not
    used again.

    Raises:
        BadRequest: it is not a token.
        BadConfiguration: this coordinator belongs to a cluster, or another one answers.
        Unavailable: no answer.
        ImbrexError: the invitation is refused.
    """
    invitation, path = Invitation.parse(token), state_dir / FOLDER / JOINED_FILE
    used = secret_hash(invitation.secret)
    before = read_entries(path).get("signer", {})
    if hmac.compare_digest(str(before.get("token", "")), used):
        return
    if Authority.load(state_dir) is not None:
        raise BadConfiguration(
            cause=f"{state_dir} belongs to a cluster already",
            cure="Start without --join, or join with another state directory (--state-dir)",
        )
    own_id, _, name = own_name(state_dir).partition(" ")
    identity, url = await enrol_coordinator(invitation, own_id, name)
    StoreAddress(url).servers  # noqa: B018 - raises if it is invalid
    signer = {"address": invitation.address, "token": used}
    Authority.joined(state_dir, identity.authority_pem, {"signer": signer})
    keep_identity(state_dir / FOLDER / "coordinator.pem", identity)
    record(state_dir, url)
    log.info("joined", coordinator=invitation.address, state=StoreAddress(url).without_password)
    state = Replicated(state_dir, StoreAddress(url))
    try:  # it begins with what the others know
        await asyncio.to_thread(state.refresh)
    except ImbrexError as error:
        log.warning("the cluster's state is not known yet", cause=error.cause, cure=error.cure)
    finally:
        state.close()


def move(state_dir: Path, target: str, *, replace: bool) -> str:
    """Moves the cluster's state to the store at the URL `target`, or back to `files`; returns the
    target without passwords.

    Raises:
        BadRequest: the target is invalid, or holds a state already, which is not to be replaced.
        BadConfiguration: the cluster has no authority, or others use its present store.
        Unavailable: the store does not answer.
    """
    address = None if target == "files" else StoreAddress(target)
    state = open_state(state_dir)
    certified = Trust.load(state_dir, state=state).certified
    if certified is None:
        raise BadConfiguration(
            cause=f"there is no cluster authority in {state_dir}",
            cure="Create one with `imbrex cluster init`: coordinators have to know each other",
        )
    try:
        if isinstance(state, Replicated) and not replace:
            state.refresh()
        if address is None:
            _to_files(state_dir, len(certified.roster.coordinators()))
        else:
            certified.register(ClusterState(state_dir))
            if not isinstance(state, Replicated):
                # Alone, a coordinator only changes its folder: it lists that when it starts.
                state.change((MODELS, DEFAULTS), _empty)
            _to_store(state_dir, address, certified.authority.fingerprint, replace=replace)
    finally:
        state.close()
    return address.without_password if address else target


def _to_files(state_dir: Path, coordinators: int) -> None:
    if coordinators > 1:
        raise BadConfiguration(
            cause=f"{coordinators} coordinators share the cluster's state",
            cure="Remove the others first (`imbrex cluster list`, `imbrex cluster remove`)",
        )
    with changing(state_dir / FOLDER / STATE_FILE) as entries:
        entries.clear()


def _empty(*documents: Entries) -> None:
    for entries in documents:
        entries.clear()


def _to_store(state_dir: Path, address: StoreAddress, authority: str, *, replace: bool) -> None:
    files = ClusterState(state_dir)
    documents = {name: files.entries(name) for name in DOCUMENTS}
    store = Replicated(state_dir, address)
    try:
        store.create(authority, documents, replace=replace)
    finally:
        store.close()
