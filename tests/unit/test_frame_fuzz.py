"""Whatever bytes come as frames or messages, even from a learner: an error that names the sender.

Known answers are mixed in: true frames and messages, cut anywhere, are read as they were sent.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

import pytest
import torch
from helpers.strangers import num_descriptors
from helpers.wire import CUTS, few_or_many, fuzz, pieces
from hypothesis import strategies as st

from hocket.core.effects import Message
from hocket.core.packing import from_bytes, to_bytes
from hocket.errors import ContractError, FencedError, HocketError
from hocket.runtime.net import links, mailbox
from hocket.runtime.net.agreement import Agreement
from hocket.runtime.net.handover import Handover
from hocket.runtime.net.links import PHASE, REPORT, Frame, LocalLink, RemoteLink
from hocket.runtime.net.mailbox import Mailbox
from hocket.runtime.net.operations import GatherBytes, GroupMemory, ReduceVectors

# ------------------------------------------------------------------ frames


FRAMES = st.builds(
    Frame,
    kind=st.sampled_from([PHASE, REPORT]),
    group=st.integers(0, 2**64 - 1),
    number=st.integers(0, 2**64 - 1),
    view=st.integers(0, 2**64 - 1),
    phase=st.integers(0, 255),
    source=st.integers(0, 2**32 - 1),
    body=st.binary(max_size=100),
)
LINKS = [(RemoteLink, socket.SOCK_STREAM), (LocalLink, socket.SOCK_SEQPACKET)]


def _all_frames(link: Any) -> tuple[list[Frame], bool]:
    """Read until nothing is there; return the frames, and whether the link has ended."""
    frames: list[Frame] = []
    while (more := link.read()) is not None:
        frames += more
        if not more:
            return frames, False
    return frames, True


@few_or_many
@pytest.mark.parametrize(("kind", "wire"), LINKS, ids=["remote", "local"])
def test_frames_are_read_as_they_were_sent(kind: Any, wire: Any, examples: int) -> None:
    @fuzz(examples, st.lists(FRAMES, max_size=6), CUTS)
    def same(frames: list[Frame], cuts: list[int]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, wire)
        link = kind(ours)
        sent = [frame.head() + bytes(frame.body) for frame in frames]
        for part in pieces(b"".join(sent), cuts) if wire == socket.SOCK_STREAM else sent:
            if part:
                theirs.sendall(part)
        read, over = _all_frames(link)
        assert not over
        assert [(f.head(), bytes(f.body)) for f in read] == [
            (f.head(), bytes(f.body)) for f in frames
        ]
        theirs.close()
        link.close()


@few_or_many
@pytest.mark.parametrize(("kind", "wire"), LINKS, ids=["remote", "local"])
def test_what_is_no_frame_ends_the_link_and_takes_no_memory(
    kind: Any, wire: Any, examples: int
) -> None:
    before = num_descriptors()

    @fuzz(examples, st.lists(st.binary(min_size=1, max_size=120), max_size=4), st.integers(0, 3))
    def ends(data: list[bytes], fds: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, wire)
        link = kind(ours)
        try:
            for one in data:
                files = [os.open("/dev/null", os.O_RDONLY) for _ in range(min(fds, 1))]
                socket.send_fds(theirs, [one], files)
                for file in files:
                    os.close(file)
        except OSError:
            pass
        frames, _ = _all_frames(link)
        for frame in frames:
            frame.drop()
        theirs.close()
        assert _all_frames(link)[1]
        link.close()
        assert link.fileno() == -1

    assert num_descriptors() == before


def test_a_length_beyond_all_reason_is_not_believed() -> None:
    head = struct.pack("<BBHIQQQQ", PHASE, 0, 0, 1, 0, 1, 0, links.MAX_BODY + 1)
    ours, theirs = socket.socketpair()
    link = RemoteLink(ours)
    theirs.sendall(head)
    assert link.read() is None
    assert theirs.recv(1) == b"", "and the other end sees that it was hung up on"


# ------------------------------------------------------------------ what a member's frames say


class Alone:
    """Peers for an agreement that hears random frames."""

    rank = 0

    def __init__(self) -> None:
        self.lost: set[int] = set()

    def send(self, to: int, frame: Frame) -> None:
        frame.drop()

    def lose(self, rank: int) -> None:
        self.lost.add(rank)


@few_or_many
def test_frames_with_any_body_are_taken_or_named(examples: int) -> None:
    @fuzz(examples, st.lists(FRAMES, max_size=6))
    def named(frames: list[Frame]) -> None:
        agreement = Agreement(Alone(), (0, 1, 2))
        for frame in frames:
            frame.source = 1
            said = "rank 1"
            try:
                agreement.take(frame)
            except (ContractError, FencedError) as error:
                said = str(error)
            assert "rank 1" in said


def _reduction(near: frozenset[int]) -> ReduceVectors:
    return ReduceVectors(
        GroupMemory(0, near), "AllReduce", torch.ones(8), [1.0], all_near=len(near) == 2
    )


def _gathering(near: frozenset[int]) -> GatherBytes:
    return GatherBytes(GroupMemory(0, near), b"mine")


@few_or_many
@pytest.mark.parametrize("make", [_reduction, _gathering])
@pytest.mark.parametrize("near", [frozenset({0}), frozenset({0, 1})], ids=["far", "near"])
def test_a_collective_names_whose_data_it_cannot_read(
    near: frozenset[int], make: Any, examples: int
) -> None:
    post = struct.Struct("<qqqqdddddd")
    numbers = st.one_of(st.integers(0, 8), st.integers(-(2**63), 2**63 - 1))
    posts = st.tuples(numbers, numbers, numbers, numbers, st.floats(), st.binary(max_size=40)).map(
        lambda p: post.pack(*p[:4], p[4], *[0.0] * 5) + p[5]
    )

    @fuzz(examples, st.one_of(st.binary(max_size=100), posts))
    def named(body: bytes) -> None:
        operation = make(near)
        operation.begin((0, 1))
        said = "rank 1"
        try:
            operation.receives(0, {1: Frame(PHASE, 0, 1, 0, body=body, source=1)})
            if operation.num_phases == 3:
                operation.receives(1, {1: Frame(PHASE, 0, 1, 0, phase=1, body=body, source=1)})
            operation.answer()
        except ContractError as error:
            said = str(error)
        finally:
            operation._memory.close()
        assert "rank 1" in said


# ------------------------------------------------------------------ messages


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
    | st.floats(allow_nan=False),
    lambda children: st.lists(children, max_size=3)
    | st.tuples(children, children)
    | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=8,
)  # fmt: skip


@few_or_many
def test_trees_come_back_from_the_wire_as_they_were(examples: int) -> None:
    @fuzz(examples, TREES)
    def same(tree: Any) -> None:
        assert from_bytes(to_bytes(tree)) == tree


def _received(data: bytes) -> tuple[list[Message], list[Exception], bool]:
    """Let a mailbox read bytes from rank 1; return messages, failures, and whether it has ended."""
    messages: list[Message] = []
    failures: list[Exception] = []
    box = Mailbox.__new__(Mailbox)
    box._handover = Handover(0, frozenset({0, 1}))
    box._arrived = messages.append
    ours, theirs = socket.socketpair()
    stream, more = mailbox._Stream(1), True
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            while more:
                more = box._read_some(ours, stream)
        except HocketError as error:
            failures.append(error)
    return messages, failures, not more


@few_or_many
def test_any_bytes_are_a_message_or_are_named(examples: int) -> None:
    head = struct.Struct("<qq")

    def message(parts: tuple[str, bytes]) -> bytes:
        tag, payload = parts[0].encode(), parts[1]
        return head.pack(len(tag), len(payload)) + tag + payload

    true = st.tuples(st.text(max_size=5), TREES.map(to_bytes)).map(message)
    wrong = st.tuples(st.text(max_size=5), st.binary(min_size=1, max_size=90)).map(message)
    spoilt = st.tuples(true, st.integers(0, 10_000), st.integers(1, 255)).map(
        lambda p: bytes(b ^ p[2] if i == p[1] % len(p[0]) else b for i, b in enumerate(p[0]))
    )

    @fuzz(examples, st.one_of(st.binary(max_size=60), wrong, spoilt))
    def decided(data: bytes) -> None:
        _, failures, over = _received(data)
        assert over or all("rank 1" in str(error) for error in failures)
        assert over or failures

    @fuzz(examples, st.tuples(st.text(max_size=5), TREES))
    def read(parts: tuple[str, Any]) -> None:
        messages, failures, _ = _received(message((parts[0], to_bytes(parts[1]))))
        assert not failures
        assert [(m.source, m.tag, m.payload) for m in messages] == [(1, *parts)]
