"""What `list --platforms` prints: the platforms that are described, and by whom."""

from __future__ import annotations

from ..spec.platforms import Platform, known_platforms


def show_platforms() -> str:
    return "\n".join(line for platform in known_platforms() for line in _lines(platform))


def _lines(platform: Platform) -> list[str]:
    found = {
        "registered with JAX as": platform.registered,
        "its devices call themselves": " or ".join(platform.devices),
        "the version of its runtime has": " or ".join(platform.version),
        "environment": " ".join(f"{name}={value}" for name, value in platform.environment.items()),
        "XLA_FLAGS": " ".join(platform.xla_flags),
        "modules": ", ".join(platform.modules),
        "processes": f"{platform.workers}" + (f", at most {platform.most_workers}" * bool(platform.most_workers)),
        "targets": ", ".join(platform.targets),
        "devices": ",".join(map(str, platform.device_counts)),
        "known failures": str(platform.expectations or ""),
        "claims": ", ".join(platform.claims),
    }
    return [f"{platform.name}, by {platform.source}", *(f"    {key}: {words}" for key, words in found.items() if words)]
