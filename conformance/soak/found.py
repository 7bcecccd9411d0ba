"""What a soak has found: the verdict, its text and its JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .growth import ALLOWED, Slope, slope_of
from .options import Options

NAME = "soak.json"
SCHEMA = 1


@dataclass(frozen=True)
class Found:
    options: Options
    report: Mapping[str, Any]
    """The last report of the process."""
    seconds: float

    @functools.cached_property
    def anomalies(self) -> list[str]:
        return [f"{each['kind']}: {each['witness']}" for each in self.report.get("anomalies", [])]

    @functools.cached_property
    def slopes(self) -> dict[str, Slope | None]:
        samples = self.report.get("samples", [])
        places = [float(each["events"]) for each in samples]
        return {
            name: slope_of(places, [each["values"][name] for each in samples], self.options.warm_up)
            for name in (samples[0]["values"] if samples else ())
        }

    @property
    def growing(self) -> list[str]:
        """The series that grow."""
        return [name for name, slope in self.slopes.items() if slope is not None and slope.grows(ALLOWED[name])]

    @property
    def exit_code(self) -> int:
        return 1 if self.anomalies or self.growing else 0

    def summary(self) -> str:
        report, events = self.report, self.report.get("events", 0)
        kinds = sorted(report.get("by_kind", {}).items(), key=lambda each: -each[1])
        growth = {name: _growth(slope, name) for name, slope in self.slopes.items()}
        judged = all(slope is not None for slope in self.slopes.values())
        grows = "nothing grows" if judged else "it was too short to say whether anything grows"
        lines = [
            f"{events:,} events of {report.get('runs', 0):,} runs in {self.seconds:.0f} s, "
            f"{events / self.seconds:,.0f} events/s; {report.get('failures', 0)} planted failures were reported; "
            f"{report.get('signals', 0)} signals came, and {report.get('signal_taps', 0)} of their handlers tapped",
            *(f"  {kind}: {count:,} ({count / self.seconds:,.0f}/s)" for kind, count in kinds),
            f"growth in an event, over {len(report.get('samples', []))} samples, with an interval of 99.9 %:",
            *(f"  {name}: {words}" for name, words in growth.items()),
        ]
        if report.get("compiling_threads"):
            lines.append(
                f"not counted as growth: {report['bytes_for_each'] / 1e6:.2f} MB of memory for each of the "
                f"{report['compiling_threads']} threads that have compiled; JAX keeps this without callbacks, too"
            )
        lines += [f"FAILED: {anomaly}" for anomaly in self.anomalies]
        lines += [f"FAILED: growth: {name} {growth[name]}" for name in self.growing]
        if report.get("interrupted"):
            lines.append("interrupted: this is what was checked until then")
        return "\n".join((*lines, "the soak failed" if self.exit_code else f"every callback was right, and {grows}"))

    def write(self, folder: Path) -> None:
        record = {
            "schema": SCHEMA,
            "options": asdict(self.options),
            "seconds": self.seconds,
            "passed": self.exit_code == 0,
            **{name: value for name, value in self.report.items() if name not in ("ended", "anomalies", "waiting")},
            "anomalies": self.anomalies,
            "slopes": {name: None if slope is None else asdict(slope) for name, slope in self.slopes.items()},
            "growing": self.growing,
        }
        (folder / NAME).write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


def _growth(slope: Slope | None, name: str) -> str:
    if slope is None:
        return "not known, since the samples are too few"
    return f"{slope.slope:+.3g}, between {slope.low:+.3g} and {slope.high:+.3g} (allowed: {ALLOWED[name]:g})"
