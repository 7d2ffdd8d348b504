"""Libraries that may carry the vectors of collectives in place of our own memory and sockets.

The few numbers of a collective (who takes part, weights, what is piggybacked) travel as always.
May import runtime.net and what that may import; exchange.py knows `carrier.VectorCarrier` alone.
"""
