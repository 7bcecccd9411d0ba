"""Checks of a lowered program: does it say all that the platform needs to call back, once, in order, at its place?

Each check is a function from the record of a module, and from what the cell wants, to the anomalies that it finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..spec.platform_targets import PlatformTarget
from .checkers import Anomaly
from .lowered import Block, Module, Operation, Placement
from .token_chains import broken_chains
from .verdicts import Stage

TO_HOST, TO_DEVICE = 2, 3
"""XLA's types of channels."""

HANDLER = ("_xla_host_transfer_handler_name", "pjrt_rendezvous")
RENDEZVOUS = "_xla_host_transfer_rendezvous"


@dataclass(frozen=True)
class Wanted:
    target: PlatformTarget
    device_count: int
    needed: frozenset[str]
    """The sites whose callback the program needs."""
    unneeded: frozenset[str] = frozenset()
    """The sites of pure callbacks whose result nothing uses."""
    ordered: bool = False
    effectful: bool = True
    in_place: bool = False
    aliased: bool = False
    partitioned: bool = False
    device: int = 0
    """The position of the device that calls, where one of several does."""


def judge_lowered(module: Module, wanted: Wanted) -> list[Anomaly]:
    checks = (_devices, _targets, _sites, _effects, _calls, _transfers, _shardings, _aliases, _order)
    return [Anomaly(kind, Stage.LOWER, words) for check in checks for kind, words in check(module, wanted)]


def callback_operations(module: Module, target: PlatformTarget) -> list[Operation]:
    """The operations by which a program calls back."""
    return [one for one in module.operations if _calls_back(one, target)]


def _calls_back(one: Operation, target: PlatformTarget) -> bool:
    if target.transfers:
        return one.is_transfer and one.host_transfer
    return target.target_of(one.callee) is not None and one.name == "stablehlo.custom_call"


def _is_judge(one: Operation, wanted: Wanted) -> bool:
    """Whether it is a check of a result on every device, which the target of partitioned callbacks also makes."""
    return one.callee == wanted.target.partitioned and not wanted.partitioned and not wanted.target.transfers


def _devices(module: Module, wanted: Wanted) -> Iterator[tuple[str, str]]:
    if module.devices != wanted.device_count:
        yield "devices", f"the module is for {module.devices} devices, expected {wanted.device_count}"


def _targets(module: Module, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """Whatever stands at a callback's site must call back in a way that the platform knows."""
    target = wanted.target
    ordinary = (target.calls, *target.taps, *(target.in_place if target.in_place_for_all else ()))
    for one in module.operations:
        if one.site is None or not (one.is_transfer or one.name == "stablehlo.custom_call"):
            continue
        if target.transfers:
            if one.name == "stablehlo.custom_call" and "callback" in one.callee:
                yield "target", f"{one.shown}: {target.name} has no custom calls that call back, it sends and receives"
            continue
        if one.is_transfer:
            yield "target", f"{one.shown}: {target.name} calls back by custom calls, and this is a transfer"
        elif (named := target.target_of(one.callee)) is None:
            if one.callee not in _ANNOTATIONS:
                yield "target", f"{one.shown}: {target.name} has no such target, it has {', '.join(target.targets)}"
        elif wanted.in_place and named not in target.in_place:
            yield "target", f"{one.shown}: a callback with the device's memory needs {' or '.join(target.in_place)}"
        elif not wanted.in_place and named != target.partitioned and named not in ordinary:
            yield "target", f"{one.shown}: this callback has arrays, and needs {target.calls}"


_ANNOTATIONS = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint")
"""Targets that every compiler removes."""


def _sites(module: Module, wanted: Wanted) -> Iterator[tuple[str, str]]:
    for site in lost_sites(wanted.needed, [one.site for one in callback_operations(module, wanted.target)]):
        yield "lost", f"no operation calls back at {site!r}, which the program needs"
    for one in callback_operations(module, wanted.target):
        # The compiler drops a custom call without side effects itself; a transfer always has side effects.
        if one.site in wanted.unneeded and (one.side_effect or one.is_transfer):
            yield "kept", f"{one.shown} stays, and nothing uses the result of this pure callback"
            return


def lost_sites(needed: frozenset[str], found: Sequence[str | None]) -> list[str]:
    """The needed sites without an operation. JAX loses some names, in the loops of batched callbacks for example."""
    absent = sorted(needed - {*found})
    return absent if len(absent) > found.count(None) else []


def _effects(module: Module, wanted: Wanted) -> Iterator[tuple[str, str]]:
    for one in callback_operations(module, wanted.target):
        if one.is_transfer or one.side_effect == wanted.effectful:
            continue
        if one.side_effect:
            yield "side effect", f"{one.shown} claims side effects, and the callback is pure"
        else:
            yield "side effect", f"{one.shown} claims no side effects: the compiler may drop or repeat it"


def _calls(module: Module, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """Custom calls: the typed FFI, and memory in the order in which the host's arrays have it."""
    for one in callback_operations(module, wanted.target):
        if one.is_transfer:
            continue
        if not (one.typed and one.api_version in (1, 4)):
            yield "api version", f"{one.shown} has API version {one.api_version}, and its attributes are not typed"
        layouts = one.layouts
        if layouts is None:
            yield "layout", f"{one.shown} has no layouts: the compiler may hand over transposed memory"
            continue
        for what, values, orders in (
            ("operand", one.operands, layouts.operands),
            ("result", one.results, layouts.results),
        ):
            if len(values) != len(orders):
                yield "layout", f"{one.shown} has {len(orders)} layouts for {len(values)} {what}s"
            for position, order in enumerate(orders):
                if order != tuple(range(len(order)))[::-1]:
                    yield "layout", f"{one.shown}: {what} {position} has the layout {list(order)}, not row-major"


def _transfers(module: Module, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """Sends and receives: each on a channel of its own, towards the right side, with the type that is awaited."""
    if not wanted.target.transfers:
        return
    transfers = [one for one in module.operations if one.is_transfer]
    for one in transfers:
        if not one.host_transfer:
            yield "transfer", f"{one.shown} is no transfer to or from the host"
            continue
        right = TO_HOST if one.name == "stablehlo.send" else TO_DEVICE
        if one.channel is None or one.channel.type != right:
            yield "channel", f"{one.shown} has a channel of type {one.channel and one.channel.type}, not {right}"
            continue
        name, value = HANDLER
        if one.attributes.get(name) != value:
            yield "transfer", f"{one.shown}: {name} is {one.attributes.get(name)!r}, not {value!r}"
        if one.attributes.get(RENDEZVOUS) != str(one.channel.number):
            yield "channel", f"{one.shown} has the rendezvous {one.attributes.get(RENDEZVOUS)!r}"
    yield from _shared(transfers)
    if module.callbacks is not None:
        yield from _awaited(module, transfers)
        yield from _in_turn(module, transfers)


def _shared(transfers: list[Operation]) -> Iterator[tuple[str, str]]:
    """JAX repeats an equation, in an unrolled loop for example, with its channels; two callbacks share none."""
    users: dict[int, set[tuple[str, str | None]]] = {}
    for one in transfers:
        if one.channel:
            users.setdefault(one.channel.number, set()).add((one.name, one.site))
    for number, found in users.items():
        if len(found) > 1:
            words = " and ".join(sorted(f"{name.removeprefix('stablehlo.')} of {site!r}" for name, site in found))
            yield "channel", f"{words} share channel {number}"


def _in_turn(module: Module, transfers: list[Operation]) -> Iterator[tuple[str, str]]:
    """The transfers of one callback follow each other: its operands in their order, and then its results."""
    by_token = {value.number: one for one in transfers for value in one.results if value.is_token}
    before: dict[int, int] = {}
    for callback in module.callbacks or ():
        channels = (*callback.sends, *callback.receives)
        before |= dict(zip(channels[1:], channels, strict=False))
    for one in transfers:
        expected = before.get(one.channel.number) if one.channel else None
        if expected is None:
            continue
        previous = [by_token[value.number] for value in one.operands if value.number in by_token]
        actual = [each.channel.number for each in previous if each.channel]
        if actual != [expected]:
            yield "channel", f"{one.shown} must follow channel {expected} of its callback, not {actual or 'none'}"


def _awaited(module: Module, transfers: list[Operation]) -> Iterator[tuple[str, str]]:
    """The runtime must await each transfer, with the same type."""
    awaited: dict[int, tuple[str, str]] = {}
    for callback in module.callbacks or ():
        sent = zip(callback.sends, callback.operands, strict=False)
        received = zip(callback.receives, callback.results, strict=False)
        awaited |= {channel: ("stablehlo.send", type_) for channel, type_ in sent}
        awaited |= {channel: ("stablehlo.recv", type_) for channel, type_ in received}
    for one in transfers:
        if one.channel is None:
            continue
        name, type_ = awaited.get(one.channel.number, ("", ""))
        values = one.operands if one.name == "stablehlo.send" else one.results
        types = [value.type for value in values if not value.is_token]
        if name != one.name:
            yield "channel", f"{one.shown}: {f'is a {name}' if name else 'the runtime does not know it'}"
        elif [type_] != types:
            yield "channel", f"{one.shown} carries {' and '.join(types)}, and the runtime awaits {type_}"


def _shardings(module: Module, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """On several devices, an operation with side effects must say where it is."""
    if module.devices == 1:
        return
    manual = _manual_functions(module)
    shardy = any("sdy." in one.name for one in module.operations) or not manual
    for inside, one in _with_place(module, manual):
        if not _calls_back(one, wanted.target) or (not one.is_transfer and not _placed(one, wanted)):
            continue
        placement = one.sharding.placement if one.sharding else None
        if inside:
            # Shardy knows that all results of a manual computation are manual, and says nothing of an operation without
            # results; GSPMD needs the sharding of each operation.
            if shardy and not one.results and placement is None:
                yield "sharding", f"{one.shown}: inside of a manual computation it has no results and no sharding"
                continue
            needs = not shardy
            if placement is Placement.ONE_DEVICE or (needs and placement is not Placement.MANUAL):
                said = one.sharding.text if one.sharding else "none"
                yield "sharding", f"{one.shown}: inside of a manual computation its sharding is {said}, not manual"
        elif placement is not Placement.ONE_DEVICE:
            said = one.sharding.text if one.sharding else "none"
            yield "sharding", f"{one.shown}: on {module.devices} devices its sharding is {said}, not one device"
        elif one.sharding and one.sharding.device != wanted.device:
            yield "sharding", f"{one.shown} is on device {one.sharding.device}, expected {wanted.device}"


def _placed(one: Operation, wanted: Wanted) -> bool:
    """Whether a custom call must name its place: the others are made by every device."""
    if one.callee == wanted.target.partitioned:
        return False
    return not (wanted.in_place and not wanted.effectful)


def _manual_functions(module: Module) -> set[str]:
    """The functions that GSPMD runs on each device's shard: those that take what `SPMDFullToShardShape` returns."""
    shards = {
        value.number for one in module.operations if one.callee == "SPMDFullToShardShape" for value in one.results
    }
    return {
        one.callee
        for one in module.operations
        if one.name == "func.call" and any(value.number in shards for value in one.operands)
    }


def _with_place(module: Module, manual: set[str]) -> Iterator[tuple[bool, Operation]]:
    """All operations, and whether each is inside of a manual computation, by the calls that lead to it."""
    places: set[tuple[str, bool]] = set()
    entry = "main" if "main" in module.functions else next(iter(module.functions))
    waiting = [(entry, entry in manual)]
    while waiting:
        name, inside = waiting.pop()
        if (name, inside) in places or name not in module.functions:
            continue
        places.add((name, inside))
        for within, one in _in_block(module.functions[name], inside):
            yield within, one
            if one.name == "func.call":
                waiting.append((one.callee, within or one.callee in manual))


def _in_block(block: Block, inside: bool) -> Iterator[tuple[bool, Operation]]:
    for one in block.operations:
        yield inside, one
        for inner in one.blocks:
            yield from _in_block(inner, inside or one.name == "sdy.manual_computation")


def _aliases(module: Module, wanted: Wanted) -> Iterator[tuple[str, str]]:
    if not wanted.aliased:
        return
    for one in callback_operations(module, wanted.target):
        if not _is_judge(one, wanted) and (0, 0) not in one.aliases:
            yield "alias", f"{one.shown}: operand 0 and result 0 share no buffer, it has {list(one.aliases) or 'none'}"


def _order(module: Module, wanted: Wanted) -> Iterator[tuple[str, str]]:
    if not wanted.ordered:
        return

    def in_order(one: Operation) -> bool:
        return _calls_back(one, wanted.target) and not _is_judge(one, wanted)

    yield from (("order", words) for words in broken_chains(module, in_order))


def compiled_sites(text: str, target: PlatformTarget) -> list[str | None]:
    """The site of each callback in the text of a compiled program; None where the name is lost."""
    if target.transfers:
        calls = r" (?:send|recv)\(.*is_host_transfer=true"
    else:
        calls = rf' custom-call(?:-start)?\(.*custom_call_target="(?:{"|".join(target.targets)})(?:_\d+)?"'
    lines = (line for line in text.splitlines() if re.search(calls, line))
    return [next(iter(re.findall(rf"{SITE_MARK}(\w+?){SITE_END}", line)), None) for line in lines]


SITE_MARK, SITE_END = "conformance_site_", "_of_conformance"
"""How a site is written into the names of operations, which lowering and compilers keep."""
