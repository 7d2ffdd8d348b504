"""How a real learner meets the others: its links, a mailbox if the strategy may use one, and
whatever carries vectors in place of both.
"""

from __future__ import annotations

from functools import partial

import torch

from hocket.core.effects import Deliver
from hocket.experiment import Experiment
from hocket.runtime.net.handshake import Handshake
from hocket.runtime.net.libraries.carrier import VectorCarrier
from hocket.runtime.net.libraries.mpi_group import MpiGroup
from hocket.runtime.net.libraries.torch_group import DeviceGroup
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
    handshake = Handshake(rank, store.derived_key(), options.timeout_s)
    mesh = Mesh(
        store,
        handshake,
        experiment.num_ranks,
        address=address,
        transport=options.transport,
        sending=fate.sending,
    )
    if messages_come(experiment):
        make = partial(
            Mailbox, store, handshake, address, size=experiment.num_ranks, near=mesh.near
        )
        messages.open(make, failed)
    return mesh


def carrier(
    experiment: Experiment, rank: int, store: Store, address: str, on: torch.device
) -> VectorCarrier | None:
    """Return the library that carries the vectors of this run; None: we do it ourselves."""
    options, size = experiment.options, experiment.num_ranks
    limit_s = options.timeout_s
    if options.transport == "torch":
        return DeviceGroup(store, rank, size, device=on, address=address, timeout_s=limit_s)
    if options.transport == "mpi":
        return MpiGroup(rank, size, in_order=options.deterministic, timeout_s=limit_s)
    return None
