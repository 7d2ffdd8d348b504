"""Two hosts for tests; `hocket.reproduce` needs them, too, so they live there."""

from hocket.reproduce.setups.two_hosts import (
    Pair as Pair,
    available as available,
    two_hosts as two_hosts,
)
