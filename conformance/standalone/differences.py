"""How a standalone program compares its calls with the expected ones: the text of these functions is a part of it.

They name the same kinds of anomalies as `oracle.checkers`, in the same order. `expected` has the calls of each device
in their order.
"""
# ruff: noqa: B905

from __future__ import annotations


def differences(expected: list, calls: list, again: list, ordered: bool) -> list:  # type: ignore[type-arg]
    wanted = [call for own in expected for call in own]
    lost, surplus = [*wanted], []
    for call in calls:
        if call in lost:
            lost.remove(call)
        elif call not in again:
            surplus.append(call)
    kinds = [["unexpected", "duplicate"], ["wrong operand", "stale operand"]]
    wrong = [f"{kinds[call[0] in [other[0] for other in lost]][call in wanted]}: {call}" for call in surplus]
    wrong += [f"lost: {call}" for call in lost]
    for own in expected * (ordered and not wrong):
        # Calls that are equal on several devices cannot be distinguished.
        own = [call for call in own if sum(call in other for other in expected) == 1]
        pairs = zip([call for call in calls if call in own], own)
        wrong += [f"order: {call} when {other} was next" for call, other in pairs if call != other][:1]
    return wrong


def differences_in_rest(expected: list, calls: list, ordered: bool) -> list:  # type: ignore[type-arg]
    # Beside its site and its operand a call has transforms, and the number of its device.
    def placed(group):  # type: ignore[no-untyped-def]
        return [(*call[:2], *[one for one in call[2:] if isinstance(one, int)]) for call in group]

    wanted = [call for own in expected for call in own]
    if sorted(map(repr, placed(wanted))) != sorted(map(repr, placed(calls))):
        return [f"wrong device: {calls}, not {expected}"]
    wrong = differences([placed(own) for own in expected], placed(calls), [], ordered)
    if not wrong and sorted(map(repr, wanted)) != sorted(map(repr, calls)):
        wrong = [f"wrong transforms: {calls}, not {expected}"]
    return wrong
