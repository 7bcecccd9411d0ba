"""The order of callbacks in a lowered program: one chain of tokens through functions, loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from .lowered import Block, Module, Operation, Value

RETURNS = ("func.return", "stablehlo.return", "sdy.return")

BRANCHES = ("stablehlo.case", "stablehlo.if")
"""Their regions have no arguments: they take the token of the block around them."""

Tokens = frozenset[int]


@dataclass
class _Walk:
    module: Module
    ordered: Callable[[Operation], bool]
    """Whether an operation keeps the order by its tokens."""
    _busy: dict[str, bool] = field(default_factory=dict)
    _sources: dict[int, Tokens] = field(default_factory=dict)
    """The tokens for which an operation without an effect waits, by the token that it returns."""

    def block(self, block: Block, current: Tokens, nested: bool) -> Iterator[str]:
        """Follow the chain through a block. `current` are the tokens that its first callback may take."""
        for one in block.operations:
            if one.name == "stablehlo.optimization_barrier":
                pairs = zip(one.results, one.operands, strict=True)
                self._sources |= {
                    result.number: self._tokens([operand]) for result, operand in pairs if result.is_token
                }
            elif one.name == "stablehlo.after_all" and one.operands:
                self._sources |= {result.number: self._tokens(one.operands) for result in one.results}
            elif one.name in RETURNS:
                returned = self._tokens(one.operands)
                # The entry function may drop its token: the program ends there.
                if nested and current and not returned & current:
                    yield f"a {one.name} hands on another token than that of the last callback before it"
            elif self._has_order(one):
                yield from self._follow(one, current)
                current = self._tokens(one.results)

    def _follow(self, one: Operation, current: Tokens) -> Iterator[str]:
        if one.name in BRANCHES:
            for branch in one.blocks:
                yield from self.block(branch, current, nested=True)
            if not self._tokens(one.results):
                yield f"{one.name} has callbacks that keep an order, and returns no token"
            return
        taken = self._tokens(one.operands)
        if not taken:
            yield f"{one.shown} takes no token"
        elif not taken & current:
            yield f"{one.shown} does not take the token of the callback before it"
        if not self._tokens(one.results):
            yield f"{one.shown} returns no token"
        for inner in self._blocks_of(one):
            first = frozenset(value.number for value in inner.arguments if value.is_token)
            is_condition = one.name == "stablehlo.while" and inner is one.blocks[0]
            yield from self.block(inner, first, nested=not is_condition)

    def _blocks_of(self, one: Operation) -> tuple[Block, ...]:
        if one.name == "func.call" and one.callee in self.module.functions:
            return (self.module.functions[one.callee],)
        return one.blocks

    def _has_order(self, one: Operation) -> bool:
        return self.ordered(one) or any(self._block_has_order(block) for block in one.blocks) or self._calls(one)

    def _block_has_order(self, block: Block) -> bool:
        return any(self._has_order(one) for one in block.operations)

    def _calls(self, one: Operation) -> bool:
        if one.name != "func.call" or one.callee not in self.module.functions:
            return False
        if one.callee not in self._busy:
            self._busy[one.callee] = False
            self._busy[one.callee] = self._block_has_order(self.module.functions[one.callee])
        return self._busy[one.callee]

    def _tokens(self, values: Iterable[Value]) -> Tokens:
        found: set[int] = set()
        for value in values:
            if value.is_token:
                found |= self._sources.get(value.number, {value.number})
        return frozenset(found)


def broken_chains(module: Module, ordered: Callable[[Operation], bool]) -> list[str]:
    """Where callbacks that keep an order do not pass one token from each to the next."""
    entry = module.functions.get("main") or next(iter(module.functions.values()))
    first = frozenset(value.number for value in entry.arguments if value.is_token)
    if not first:
        # JAX may make the first token itself.
        made = (value.number for one in entry.operations if one.name == _FRESH for value in one.results)
        first = frozenset([*made][:1])
    return [*dict.fromkeys(_Walk(module, ordered).block(entry, first, nested=False))]


_FRESH = "stablehlo.create_token"
