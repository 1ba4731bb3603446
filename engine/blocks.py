"""BlockPool: which block of the cache belongs to whom. No torch here.

A block is free (nobody's, nothing in it worth keeping), used (some sequences hold references), or cached (nobody's,
but its content is published under its prefix and may be taken up again until the block is needed).

Prefixes are kept as a tree: a published block's key is the identity of its parent's publication and its own tokens.
Looking a key up compares the tokens themselves, so a hit is exact and no hash is trusted. Tables are released from
their end and share whole beginnings, so a child is always evicted before its parent and nothing becomes unreachable.
Where a beginning ends within a published block, its first tokens can be copied instead of computed (`match_part`).
Every owner has a tree of its own: what one has in the cache, another can neither use nor notice.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Sequence

Key = tuple[int, tuple[int, ...]]
Start = tuple[int, int]  # a parent's identity, and the first token of a block after it
ROOT = 0  # the parent of every first block of nobody's tree; other owners' roots lie below


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, numbered from 0, reference-counted."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._prefix_caching = prefix_caching
        self._references = array("i", bytes(4 * num_blocks))
        self._free = list(range(num_blocks - 1, -1, -1))  # the end is taken first
        self._cached: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self._keys: list[Key | None] = [None] * num_blocks  # of published blocks
        self._identities = array("q", bytes(8 * num_blocks))  # of publications; never given twice
        self._published: dict[Key, int] = {}
        self._starting: dict[Start, int] = {}  # a block published with this start
        self._unwritten: set[int] = set()  # published by the step being planned
        self._last_identity = ROOT
        self._roots: dict[Hashable, int] = {None: ROOT}  # one for every owner that there ever was

    @property
    def num_available(self) -> int:
        """Blocks that `take` could give now: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def num_blocks_of(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def root(self, owner: Hashable) -> int:
        """Where the tree of this owner begins."""
        return self._roots.setdefault(owner, -len(self._roots))

    def match(self, tokens: Sequence[int], root: int = ROOT) -> list[int]:
        """The published blocks that hold the longest beginning of `tokens`, at least one token short of all of it,
        since the last token must be computed for its logits. Takes no references: `hold` does."""
        blocks: list[int] = []
        if not self._prefix_caching:
            return blocks
        size, parent = self.block_size, root
        for start in range(0, len(tokens) - size, size):
            block = self._published.get((parent, tuple(tokens[start : start + size])))
            if block is None:
                break
            blocks.append(block)
            parent = self._identities[block]
        return blocks

    def match_part(self, tokens: Sequence[int], hits: Sequence[int], root: int = ROOT) -> tuple[int, int] | None:
        """A written block whose first tokens go on where `hits`, a match of `tokens`, end: the block and how many of
        its tokens agree, again at least one token short of all of `tokens`. None: there is none.

        Copy it before anything of the step is written: it may be evicted right away.
        """
        if not self._prefix_caching:
            return None
        start = len(hits) * self.block_size
        block = self._starting.get((self._identities[hits[-1]] if hits else root, tokens[start]))
        if block is None or block in self._unwritten:
            return None
        key = self._keys[block]
        assert key is not None, "what begins like this is published"
        most = len(tokens) - 1 - start
        count = 0
        while count < most and count < self.block_size and key[1][count] == tokens[start + count]:
            count += 1
        return (block, count) if count else None

    def plan_step(self) -> None:
        """What was published up to now is written."""
        self._unwritten.clear()

    def retract(self) -> frozenset[int]:
        """What the step being planned published will not be written: unpublish it. Returns these blocks, which tables
        may still hold."""
        lost = frozenset(self._unwritten)
        self._unwritten.clear()
        for block in lost:
            self._unpublish(block)
            if block in self._cached:
                del self._cached[block]
                self._free.append(block)
        return lost

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are cached: holding them lowers `num_available` by so many."""
        return sum(1 for block in blocks if not self._references[block])

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of these matched blocks."""
        for block in blocks:
            if not self._references[block]:
                del self._cached[block]
            self._references[block] += 1

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks with one reference each; their content is undefined. Evicts cached blocks if need
        be. The caller has made sure that so many are available."""
        assert count <= self.num_available, "more blocks taken than are available"
        blocks = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def seal(self, table: array[int], index: int, tokens: Sequence[int], *, written: bool, root: int = ROOT) -> bool:
        """Publish block `index` of a table as holding `tokens`, after the blocks before it.

        The content must be written by the end of the step being planned, before any later one reads it. When another
        block is published under that prefix already, the table takes that one over and gives its own back; but only
        if its own is `written` already, as nothing may be written to a block that others read. Returns whether the
        table's block `index` is a published one now.
        """
        if not self._prefix_caching:
            return False
        own = table[index]
        key = (self._identities[table[index - 1]] if index else root, tuple(tokens))
        twin = self._published.get(key)
        if twin is None:
            self._last_identity += 1
            self._keys[own] = key
            self._identities[own] = self._last_identity
            self._published[key] = own
            # The oldest stays, as the newest is often not written yet.
            self._starting.setdefault((key[0], key[1][0]), own)
            self._unwritten.add(own)
            return True
        if written:
            self.hold((twin,))
            table[index] = twin
            self.release((own,))
        return written

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block of a table (or of the end of one)."""
        references = self._references
        for block in reversed(blocks):
            references[block] -= 1
            if references[block] == 0:
                if self._keys[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def _evict(self) -> int:
        """Unpublish the least recently used cached block."""
        block, _ = self._cached.popitem(last=False)
        self._unpublish(block)
        return block

    def _unpublish(self, block: int) -> None:
        key = self._keys[block]
        assert key is not None, "only what is published can be unpublished"
        del self._published[key]
        start = (key[0], key[1][0])
        if self._starting.get(start) == block:
            del self._starting[start]
        self._keys[block] = None
        self._identities[block] = ROOT

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Assert every invariant, given the tables of all sequences in flight. For tests: slow."""
        held = Counter(block for table in tables for block in table)
        references = [held[block] for block in range(self.num_blocks)]
        assert list(self._references) == references, "references and tables differ"
        states = Counter([*self._free, *self._cached, *held])
        assert states == Counter(range(self.num_blocks)), "a block is in two states or in none"
        keys = {key: block for block, key in enumerate(self._keys) if key is not None}
        assert keys == self._published, "the index and the blocks' keys differ"
        assert not any(self._keys[block] for block in self._free), "a free block is published"
        assert all(self._keys[block] for block in self._cached), "a cached block is not published"
        identities = {self._identities[block] for block in keys.values()} | {ROOT}
        assert len(identities) == len(keys) + 1, "an identity was given twice"
        parents = identities | set(self._roots.values())
        assert {parent for parent, _ in keys} <= parents, "a published block lost its parent"
        for (parent, first), block in self._starting.items():
            key = self._keys[block]
            assert key is not None, "a start leads to an unpublished block"
            assert (key[0], key[1][0]) == (parent, first), "a block does not begin as its start says"
