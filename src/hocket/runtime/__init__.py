"""The two worlds that answer a strategy's effects: real processes and the simulator.

`shared` is what both have in common; `net` moves bytes; `real` and `sim` are the worlds, which
never see each other; `launch` starts real learners. Each room says what it may import; none
imports `hocket.config`, `hocket.api` or anything above them.
"""
