"""How a real learner meets the others: its links, and a mailbox if the strategy may use one."""

from __future__ import annotations

from functools import partial

from hocket.core.effects import Deliver
from hocket.experiment import Experiment
from hocket.runtime.net.mailbox import Mailbox
from hocket.runtime.net.mesh import Mesh
from hocket.runtime.net.store import Store
from hocket.runtime.real.faults import Fate
from hocket.runtime.real.messages import Messages


def messages_come(experiment: Experiment) -> bool:
    """True if messages may come in at any time, so that nothing may block the loop."""
    return not experiment.strategy.synchronous or experiment.strategy.uses_messages


def connect(
    experiment: Experiment,
    rank: int,
    store: Store,
    address: str,
    messages: Messages,
    fate: Fate,
    failed: Deliver,
) -> Mesh:
    """Connect to all others; a failure of the mailbox later goes to `failed`."""
    options = experiment.options
    token = bytes.fromhex(store.get("token"))
    mesh = Mesh(
        store,
        rank,
        options.learners,
        address=address,
        token=token,
        timeout_s=options.timeout_s,
        transport=options.transport,
    )
    mesh.sending = fate.sending
    if messages_come(experiment):
        make = partial(
            Mailbox,
            store,
            rank,
            address,
            token,
            size=options.learners,
            near=mesh.near,
            timeout_s=options.timeout_s,
        )
        messages.open(make, failed)
    return mesh
