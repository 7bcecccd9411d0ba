"""The source of the callback under test: how a program calls it, and what it takes from the call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..implementations.payloads import differs, mismatches, payload_of
from ..oracle.batch_axes import at_the_front, moved
from ..spec.callbacks import CONSTANT_OPERAND, Callback, DeviceChoice
from ..spec.data import DataKind
from .operands import CHECKED, IN_ORDER, Shown, data_source, host_source, text_of

MODULES = {
    ("jax", "pure_callback"): ("jax.pure_callback", ""),
    ("jax", "io_callback"): ("io_callback", "from jax.experimental import io_callback"),
    ("jax", "debug.callback"): ("jax.debug.callback", ""),
    ("jax", "debug.print"): ("jax.debug.print", ""),
    ("jax", "buffer_callback"): ("buffer_callback", "from jax.experimental.buffer_callback import buffer_callback"),
}
"""How a program names JAX's callbacks, and what it imports for them."""


@dataclass(frozen=True)
class CallbackSource:
    """The parts of a program that belong to a callback, or to the parts of a mixture."""

    implementation: str
    callback: Callback
    data: DataKind
    shown: Shown
    device_index: int
    """The index of the last device of the cell."""
    sites: Sequence[str]
    """The sites of the program."""
    batched: bool = False
    """Whether the program has a vmap."""

    def imports(self) -> list[str]:
        """The imports beside JAX and NumPy."""
        if self.implementation != "jax":
            return ["import hostcb"]
        return list(dict.fromkeys(MODULES["jax", part.function][1] for part in self._parts()))

    def functions(self) -> list[str]:
        """The functions of the program, the last one `callback(site, x)`."""
        parts = list(self._parts())
        functions = [self.shown.source]
        if not self.data.plain:
            functions.append(data_source(self.data))
            returns = any(part.returns_new_value or part.function == "id_tap" for part in parts)
            functions += [text_of(differs), text_of(mismatches), CHECKED] if returns else []
        functions += [text for part in parts for text in self._of(part, _suffix(self.callback, part))]
        if self.callback.parts:
            by_site = [f'"{site}": callback{_suffix(self.callback, self.callback.at(site))}' for site in self.sites]
            functions.append(
                f"def callback(site, x):\n    parts = {{{', '.join(by_site)}}}\n    return parts[site](site, x)"
            )
        return [function for function in functions if function]

    def _parts(self) -> Sequence[Callback]:
        return self.callback.parts or (self.callback,)

    def _of(self, callback: Callback, suffix: str) -> list[str]:
        """The host function, and the function that calls the callback."""
        host, name, options = f"host{suffix}", self._name(callback), self._options(callback)
        operand, wanted = self._operand(callback), self._wanted()
        if callback.function == "debug.print":
            # The site is part of the format, since older releases of JAX print no text.
            hosts, call = [PRINTED], f'{name}(site + ": {{}}", {operand}{options})'
        else:
            further = self._further_parameters(callback)
            batched = self.batched and "transforms" in further
            hosts = [text_of(moved), text_of(at_the_front), IN_ORDER] if batched else []
            hosts.append(host_source(callback, self.data, self.shown, further, host, batched))
            x, star = ("*x", "*") if payload_of(callback, self.data).spread else ("x", "")
            tapped = ["transforms"] if callback.function == "id_tap" else []
            parameters = ", ".join((x, *tapped, *["*, device"] * callback.receives_device))
            function = f"lambda {parameters}: {host}({', '.join(('site', x, *further))})"
            if callback.on_every_device:
                hosts.append(_fill(callback))
                function = f"functools.partial(fill, functools.partial({host}, site))"
                call = f"{name}({function}, {wanted}{options})({star}{operand})"
            elif callback.function in ("pure_callback", "io_callback"):
                call = f"{name}({function}, {wanted}, {star}{operand}{options})"
            else:
                call = f"{name}({function}, {star}{operand}{options})"
        return [*hosts, f"def callback{suffix}(site, x):\n{self._returned(callback, call)}"]

    def _further_parameters(self, callback: Callback) -> tuple[str, ...]:
        """What the host function receives beside its operand."""
        if self.callback.parts:
            # The parts of a mixture record the same things, so that their calls can be compared.
            return ()
        transforms = ("transforms",) if callback.receives_transforms else ()
        return (*transforms, "device") if callback.receives_device else transforms

    def _name(self, callback: Callback) -> str:
        if self.implementation != "jax":
            return f"hostcb.{callback.function}"
        return MODULES["jax", callback.function][0]

    def _operand(self, callback: Callback) -> str:
        plain = "x" if self.data.plain else "operand(x)"
        if not callback.takes_tree:
            return plain
        return f'{{"constant": np.float32({CONSTANT_OPERAND:g}), "value": {plain}}}'

    def _wanted(self) -> str:
        return "jax.ShapeDtypeStruct(x.shape, x.dtype)" if self.data.plain else "types(x)"

    def _options(self, callback: Callback) -> str:
        """The source of its options."""
        options = {name: repr(value) for name, value in callback.options.items()}
        of_host = callback.function in ("id_tap", "call")
        if callback.device_choice is DeviceChoice.LAST:
            place = "jax.sharding.SingleDeviceSharding(devices[-1])"
            options |= {"device_index": str(self.device_index)} if of_host else {"sharding": place}
        if of_host and callback.returns_new_value:
            new = "x + 1" if self.data.plain else "right(x)"
            options |= {"result": new} if callback.function == "id_tap" else {"result_shape": self._wanted()}
        return "".join(f", {name}={value}" for name, value in options.items())

    def _returned(self, callback: Callback, call: str) -> str:
        """The lines that return the program's number, from new values or from the operand that a tap has returned."""
        passed = callback.function == "id_tap" and not callback.returns_new_value
        if not (passed or callback.returns_new_value):
            return f"    {call}\n    return x"
        call += '["value"]' if passed and callback.takes_tree else ""
        if self.data.plain:
            return f"    return {call}"
        number = "x" if passed else "x + 1"
        number = "jax.tree.leaves(result)[0]" if self.data.of_structure.has_carrier else number
        return f"    result = {call}\n    return checked({number}, result, {'operand' if passed else 'right'}(x))"


def _fill(callback: Callback) -> str:
    """The function that a buffer callback calls: it copies the buffers, since they are valid only during the call."""
    copies = "jax.tree.map(lambda buffer: np.array(np_view(buffer)), buffers)"
    view = """\
def np_view(buffer):
    return np.asarray(buffer) if hasattr(buffer, "__array__") else np.from_dlpack(buffer)"""
    if not callback.in_place:
        return f"{view}\n\ndef fill(host, *buffers):\n    return host(*{copies})"
    context = "context, " if callback.function == "buffer_callback" else ""
    lines = [f"def fill(host, {context}out, *buffers):", f"    results = jax.tree.leaves(host(*{copies}))"]
    if callback.aliased:
        lines += [
            "    written, read = (np_view(jax.tree.leaves(each)[0]) for each in (out, buffers))",
            '    assert written.__array_interface__["data"] == read.__array_interface__["data"], "not the same buffer"',
        ]
    lines += [
        "    for buffer, result in zip(jax.tree.leaves(out), results, strict=True):",
        "        np_view(buffer)[...] = result",
    ]
    return view + "\n\n" + "\n".join(lines)


def _suffix(whole: Callback, part: Callback) -> str:
    return f"_by_{part.function.replace('.', '_').removesuffix('_callback')}" if whole.parts else ""


PRINTED = '''\
class Printed:
    """What prints is a call if it names a site."""

    def __getattr__(self, name):
        return getattr(sys.__stdout__, name)

    def write(self, text):
        site, colon, value = text.partition(": ")
        if colon and site in ("first", "unused", "last", "forward_end", "cotangent", "tangent"):
            calls.append((site, " ".join(value.split())))
            return len(text)
        return sys.__stdout__.write(text)

sys.stdout = Printed()'''
