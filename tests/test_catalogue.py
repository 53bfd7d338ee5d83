"""The table of metrics keeps to the naming rules that a scrape cannot check."""

from __future__ import annotations

import re

import pytest

from training_exporter.catalogue import BY_NAME, CATALOGUE, LABELS, MetricSpec

# Prometheus sets these itself, or other conventions own them (writing_exporters, "Labels").
FORBIDDEN_LABELS = {"job", "instance", "hostname", "pid", "path", "type", "service", "le", "quantile"}


@pytest.mark.parametrize("spec", CATALOGUE, ids=lambda spec: spec.name)
class TestMetricSpec:
    def test_name_is_prefixed_snake_case(self, spec: MetricSpec) -> None:
        """Every name begins with the project's prefix and holds neither capitals nor colons."""
        assert re.fullmatch(r"training_[a-z0-9]+(_[a-z0-9]+)*", spec.name)

    def test_total_is_for_counters(self, spec: MetricSpec) -> None:
        """`_total` stands on counters and only there."""
        assert spec.name.endswith("_total") == (spec.kind == "counter")

    def test_units_are_base_units(self, spec: MetricSpec) -> None:
        """No name ends in a derived unit."""
        assert not re.search(r"_(ms|milliseconds|minutes|percent|mib|kib|mhz|mw)(_total)?$", spec.name)

    def test_labels_are_documented_and_allowed(self, spec: MetricSpec) -> None:
        """Each label is explained once, except those of an info series that only name things."""
        explained = spec.labels if not spec.name.endswith("_info") else ()
        assert set(explained) - set(LABELS) == set()
        assert set(spec.labels) & FORBIDDEN_LABELS == set()
        assert len(spec.labels) == len(set(spec.labels))

    def test_help_is_a_sentence(self, spec: MetricSpec) -> None:
        """Help begins with a capital, a digit or a code word and ends with a full stop."""
        assert re.match(r"[A-Z0-9]", spec.help)
        assert spec.help.endswith(".")


class TestCatalogue:
    def test_names_are_unique(self) -> None:
        """No two rows share a name, and none shares the family name of a counter without its suffix."""
        families = [spec.name.removesuffix("_total") for spec in CATALOGUE]
        assert len(CATALOGUE) == len(BY_NAME) == len(set(families))
