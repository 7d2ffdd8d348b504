"""H: from phones in context to senones with loops, as a graph that is as small as possible.

    H o CLG     every phone becomes a chain of three senones, without loops yet
    det, min    chains with the same beginning or end are merged (a tree ties most contexts)
    loops       staying in a senone costs -log p, leaving it -log(1 - p)

A decoder's time grows with the number of paths that it keeps, so states with the same senones ahead
or behind should be one state. Loops are added last, because they would prevent such merging. As in
Kaldi ("reordered" loops), a senone's loop is on the state that its arc leads to; if arcs of several
senones lead there, each gets a state of its own in front of it, a *door*.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import kaldifst
import numpy as np
from numpy.typing import NDArray

from hocket.speech.graph.arcs import EPSILON, Arcs, Ints
from hocket.speech.graph.senones import NUM_STATES, Senones

LOOP_SCALE: Final = 0.1  # as in Kaldi: decoding scales durations down as it does acoustics


def with_states(
    clg: Any, labels: list[list[int]], senones: Senones, loop_probability: NDArray[np.float64]
) -> Any:
    """Return HCLG, whose input labels are pdf + 1."""
    fst = chains(Arcs.of(clg), labels, senones).fst()
    kaldifst.determinize_star(fst)
    arcs = Arcs.of(fst)
    plain = np.where(arcs.ilabel <= senones.num_pdfs, arcs.ilabel, EPSILON)
    fst = replace(arcs, ilabel=plain).fst()
    kaldifst.minimize_encoded(fst)
    graph = with_loops(Arcs.of(fst), loop_probability).fst()
    kaldifst.connect(graph)
    return graph


def chains(clg: Arcs, labels: list[list[int]], senones: Senones) -> Arcs:
    """Replace every phone in context by its senones; disambiguation symbols follow the pdfs."""
    said = np.array([_senone_labels(window, senones) for window in labels])[clg.ilabel]
    phone = np.flatnonzero(said[:, 1])
    rest = np.flatnonzero(said[:, 1] == 0)  # epsilons and symbols: one arc, as before
    one = clg.num_states + (NUM_STATES - 1) * np.arange(len(phone))
    two = one + 1
    nothing = np.zeros(len(phone), np.int64)
    return Arcs(
        clg.start,
        np.concatenate([clg.final, np.full((NUM_STATES - 1) * len(phone), np.inf)]),
        np.concatenate([clg.source[rest], clg.source[phone], one, two]),
        np.concatenate([said[rest, 0], *said[phone].T]),
        np.concatenate([clg.olabel[rest], clg.olabel[phone], nothing, nothing]),
        np.concatenate([clg.cost[rest], clg.cost[phone], nothing, nothing]),
        np.concatenate([clg.target[rest], one, two, clg.target[phone]]),
    )


def _senone_labels(window: list[int], senones: Senones) -> list[int]:
    """Return the three labels of a phone in context; for anything else, one label and zeros."""
    if len(window) == 1 and window[0] < 0:
        return [senones.num_pdfs - window[0], 0, 0]
    left, phone, right = window if len(window) == NUM_STATES else (0, *window, 0, 0)[:3]
    if len(window) == 0 or phone == 0:  # epsilon, or the window is past the end
        return [EPSILON, 0, 0]
    return [pdf + 1 for pdf in senones.pdfs(left, phone, right)]


def with_loops(arcs: Arcs, loop_probability: NDArray[np.float64]) -> Arcs:
    """Give every senone its loop, on the state that its arc leads to."""
    loop = np.r_[0.0, -LOOP_SCALE * np.log(loop_probability)]  # by label
    leave = np.r_[0.0, -LOOP_SCALE * np.log1p(-loop_probability)]
    only = _only_entry(arcs)
    blocked = (arcs.ilabel != EPSILON) & (only[arcs.target] == EPSILON)
    keys = arcs.target[blocked] * len(loop) + arcs.ilabel[blocked]
    pairs, door = np.unique(keys, return_inverse=True)
    behind, label = np.divmod(pairs, len(loop))
    doors = arcs.num_states + np.arange(len(pairs))
    target = arcs.target.copy()
    target[blocked] = doors[door]
    held = np.flatnonzero(only)  # states that hold a loop themselves
    no_words = np.zeros(len(held) + 2 * len(doors), np.int64)
    return Arcs(
        arcs.start,
        np.concatenate([arcs.final + leave[only], np.full(len(doors), np.inf)]),
        np.concatenate([arcs.source, held, doors, doors]),
        np.concatenate([arcs.ilabel, only[held], label, np.full(len(doors), EPSILON)]),
        np.concatenate([arcs.olabel, no_words]),
        np.concatenate(
            [arcs.cost + leave[only][arcs.source], loop[only[held]], loop[label], leave[label]]
        ),
        np.concatenate([target, held, doors, behind]),
    )


def _only_entry(arcs: Arcs) -> Ints:
    """Return, for each state, the only senone that leads to it; 0 if there are several."""
    most, least = np.zeros(arcs.num_states, np.int64), np.full(arcs.num_states, 2**31)
    np.maximum.at(most, arcs.target, arcs.ilabel)
    np.minimum.at(least, arcs.target, arcs.ilabel)
    least[arcs.start] = EPSILON  # a path can also begin there
    return np.where(most == least, most, EPSILON)
