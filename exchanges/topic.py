"""Topic routing: a trie of the words of the binding keys.

`*` stands for one word, `#` for any number, including zero. The trie is walked as a nondeterministic
automaton: all nodes that the words so far can reach, one step for each word. A `#` node keeps itself reached.
Work is bounded by words times nodes, whatever the keys are; a recursive walk would try every way to
distribute the words over several `#`. If keys have several `#`, nearly all nodes are visited only once.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from exchanges.binding import Binding
from exchanges.errors import InvalidArgument
from exchanges.matcher import Depends, Destinations, Message

#: With more bindings than this, a key is matched in parts.
LARGE: Final = 4096
#: Nodes that are visited in a part.
_PART: Final = 256


class TrieNode:
    __slots__ = ("any_words", "destinations", "is_any_words", "one_word", "words")

    def __init__(self, *, is_any_words: bool = False) -> None:
        self.words: dict[str, TrieNode] = {}
        self.one_word: TrieNode | None = None
        self.any_words: TrieNode | None = None
        self.is_any_words = is_any_words
        self.destinations: Destinations | None = None

    def is_bare(self) -> bool:
        return not (self.words or self.one_word or self.any_words or self.destinations)

    def leads_to_any_words_only(self) -> bool:
        return not (self.words or self.one_word or self.destinations)

    def child(self, word: str) -> "TrieNode | None":
        if word == "*":
            return self.one_word
        if word == "#":
            return self.any_words
        return self.words.get(word)

    def attach(self, word: str) -> "TrieNode":
        node = TrieNode(is_any_words=word == "#")
        if word == "*":
            self.one_word = node
        elif word == "#":
            self.any_words = node
        else:
            self.words[word] = node
        return node

    def detach(self, word: str) -> None:
        if word == "*":
            self.one_word = None
        elif word == "#":
            self.any_words = None
        else:
            del self.words[word]


def split(key: str) -> list[str]:
    """The empty key has no words at all; in other keys an empty word counts, as in `a..b`."""
    return key.split(".") if key else []


def pattern_words(binding_key: str) -> list[str]:
    """The words, with each run of `#` reduced to one, which means the same."""
    words = split(binding_key)
    return [word for place, word in enumerate(words) if word != "#" or not place or words[place - 1] != "#"]


class TopicMatcher:
    depends = Depends.KEY
    wants_all_keys = True

    def __init__(self, any_words_max: int = 16) -> None:
        self._root = TrieNode()
        self._any_words_max = any_words_max
        #: Number of `#` in the keys beyond the first one of each.
        self.any_words_again = 0
        self._count = 0

    @property
    def large(self) -> bool:
        """True if `parts` should be used instead of `match`."""
        return self._count > LARGE

    def bind(self, binding: Binding) -> None:
        raw_count = split(binding.routing_key).count("#")
        if raw_count > self._any_words_max:
            raise InvalidArgument(
                f"binding key has {raw_count} '#' words, at most {self._any_words_max} are allowed"
            )
        words = pattern_words(binding.routing_key)
        node = self._root
        for word in words:
            node = node.child(word) or node.attach(word)
        if node.destinations is None:
            node.destinations = Destinations()
        node.destinations.add(binding)
        self.any_words_again += max(0, words.count("#") - 1)
        self._count += 1

    def unbind(self, binding: Binding) -> None:
        words = pattern_words(binding.routing_key)
        path = [self._root]
        for word in words:
            node = path[-1].child(word)
            assert node is not None
            path.append(node)
        destinations = path[-1].destinations
        assert destinations is not None
        destinations.remove(binding)
        if not destinations:
            path[-1].destinations = None
        for parent, word, node in reversed(list(zip(path, words, path[1:], strict=False))):
            if node.is_bare():
                parent.detach(word)
        self.any_words_again -= max(0, words.count("#") - 1)
        self._count -= 1

    def match(self, routing_key: str, message: Message | None, nonce: int) -> Sequence[Destinations]:
        root = self._root
        words = routing_key.split(".") if routing_key else []
        if self.any_words_again:
            return [found for part in self._several(words) for found in part]
        reached = [root] if root.any_words is None else [root, root.any_words]
        for word in words:
            following: list[TrieNode] = []
            for node in reached:
                if node.is_any_words:
                    following.append(node)
                after = node.words.get(word)
                if after is not None:
                    following.append(after)
                    if after.any_words is not None:
                        following.append(after.any_words)
                after = node.one_word
                if after is not None:
                    following.append(after)
                    if after.any_words is not None:
                        following.append(after.any_words)
            if not following:
                return ()
            reached = following
        return [node.destinations for node in reached if node.destinations is not None]

    def parts(self, routing_key: str) -> Iterator[Sequence[Destinations]]:
        """Yield what `match` returns in parts, each of which takes a short time; some are empty."""
        words = split(routing_key)
        if self.any_words_again:
            yield from self._several(words)
            return
        left: list[tuple[TrieNode, int]] = [(self._root, 0)]
        if self._root.any_words is not None:
            left.append((self._root.any_words, 0))
        found: list[Destinations] = []
        visited = 0
        while left:
            node, place = left.pop()
            visited += 1
            if visited % _PART == 0:
                yield found
                found = []
            if place == len(words):
                if node.destinations is not None:
                    found.append(node.destinations)
                continue
            place += 1
            if node.is_any_words:
                left.append((node, place))
            for after in (node.words.get(words[place - 1]), node.one_word):
                if after is not None:
                    left.append((after, place))
                    if after.any_words is not None:
                        left.append((after.any_words, place))
        yield found

    def _several(self, words: list[str]) -> Iterator[Sequence[Destinations]]:
        """The same for keys with several `#`: two ways may lead to one node, and many `#` may be reached.

        A reached `#` stays reached. It is visited once: its successors are noted under the words that lead to
        them, and removed again when they have only led to the next `#`.
        """
        distinct = dict.fromkeys(words)
        stay: dict[TrieNode, None] = {}
        waiting: dict[str, dict[TrieNode, None]] = {word: {} for word in distinct}
        waiting_for_any: dict[TrieNode, None] = {}
        reached: dict[TrieNode, None] = {self._root: None}

        def note(nodes: dict[TrieNode, None]) -> Iterator[Sequence[Destinations]]:
            """From the next word on, the successors of the `#` after these nodes may match."""
            for number, node in enumerate(nodes, 1):
                if number % _PART == 0:
                    yield ()
                any_words = node.any_words
                if any_words is None or any_words in stay:
                    continue
                stay[any_words] = None
                following = any_words.words
                if len(following) <= len(distinct):
                    for word, after in following.items():
                        if word in waiting:
                            waiting[word][after] = None
                else:
                    for word in distinct:
                        if word in following:
                            waiting[word][following[word]] = None
                if any_words.one_word is not None:
                    waiting_for_any[any_words.one_word] = None

        yield from note(reached)
        for word in words:
            come = waiting[word]
            waiting[word] = {node: None for node in come if not node.leads_to_any_words_only()}
            come.update(waiting_for_any)
            for number, node in enumerate(reached, 1):
                if number % _PART == 0:
                    yield ()
                for after in (node.words.get(word), node.one_word):
                    if after is not None:
                        come[after] = None
            reached = come
            yield from note(reached)
        found = [*reached, *stay]
        for start in range(0, len(found), _PART):
            part = found[start : start + _PART]
            yield [node.destinations for node in part if node.destinations is not None]
