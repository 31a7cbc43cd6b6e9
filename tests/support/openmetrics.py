"""Reads OpenMetrics text, by the rules of its specification 1.0 as far as the text of collc needs them."""

from __future__ import annotations

import re

_SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} ([0-9.e+-]+)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"')

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Samples:
    """The samples: name and labels -> value."""
    lines = text.split("\n")
    assert lines[-2:] == ["# EOF", ""]
    kinds: dict[str, str] = {}
    family, found = "", {}
    for line in lines[:-2]:
        if line.startswith("# "):
            _, word, name, rest = line.split(" ", 3)
            if word == "TYPE":
                assert name not in kinds, "a family that is interrupted"
                family, kinds[name] = name, rest
            assert name == family
            assert word in ("TYPE", "HELP", "UNIT")
            assert word != "UNIT" or name.endswith(f"_{rest}")
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        assert match[1] == family + ("_total" if kinds[family] == "counter" else "")
        labels = _LABEL.findall(match[2])
        assert len({key for key, _ in labels}) == len(labels)
        key = (match[1], frozenset(labels))
        assert key not in found
        found[key] = float(match[3])
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    (found,) = [v for (own, given), v in samples.items() if own == name and set(labels.items()) <= given]
    return found
