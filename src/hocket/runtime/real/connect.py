"""How a real learner meets the others: its links, and a mailbox if the strategy may use one."""

from __future__ import annotations

from functools import partial

from hocket.core.effects import Deliver
from hocket.experiment import Experiment
from hocket.runtime.net.handshake import Handshake
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
    handshake = Handshake.from_store(store, rank, options.timeout_s)
    mesh = Mesh(
        store,
        handshake,
        options.learners,
        address=address,
        transport=options.transport,
        sending=fate.sending,
    )
    if messages_come(experiment):
        make = partial(Mailbox, store, handshake, address, size=options.learners, near=mesh.near)
        messages.open(make, failed)
    return mesh
