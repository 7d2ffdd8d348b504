"""What the runtime keeps for one rank, in either world: `RankContext`, and its parts.

`account.py`: what was drawn and settled, and the rate; `hand.py`: what is computed and not settled;
`guard.py`: whether the loss is too high; `agenda.py`: what is due; `reporter.py`: what goes into
the record. May import what `runtime.shared` may.
"""

from hocket.runtime.shared.context.rank import RankContext as RankContext
