"""The corpus: findings, rewrites, and equal results of the original and the rewritten program.

So does each of these under `run`: `tests/running/test_corpus.py` compares that with the same native run.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.findings import Outcome, Severity
from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import read_source
from tests.running.test_corpus import OLDER_TOLERANCE

CORPUS = Path(__file__).parent / "corpus"
EXPECTATIONS = json.loads((CORPUS / "expectations.json").read_text(encoding="utf-8"))
SCRIPTS = sorted(path.stem for path in CORPUS.glob("*.py"))
MIGRATED = [name for name in SCRIPTS if EXPECTATIONS[name]["migrate"] == "migrated"]


@lru_cache(maxsize=None)
def source(name):
    return read_source(CORPUS / f"{name}.py")


@lru_cache(maxsize=None)
def migration(name):
    return migrate_source(source(name))


@pytest.fixture(scope="module")
def migrated(tmp_path_factory, scripts):
    """Run a migrated script with a backend."""
    folder = tmp_path_factory.mktemp("migrated")

    def run(name, backend):
        path = folder / f"{name}.py"
        path.write_text(migration(name).text, encoding="utf-8")
        return scripts.run(path, backend)

    return run


@pytest.fixture(scope="module")
def native(scripts):
    """Run a script as it is."""
    return lambda name: scripts.run(CORPUS / f"{name}.py", "native")


def test_every_script_has_an_expectation_and_says_what_it_is():
    assert sorted(EXPECTATIONS) == SCRIPTS
    assert len(SCRIPTS) >= 25
    assert all(source(name).text.startswith('"""') for name in SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_check_reports(name):
    findings, _ = check_source(source(name))
    assert sorted({finding.rule for finding in findings}) == EXPECTATIONS[name]["check"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_migrate_rewrites_or_leaves_alone(name):
    result, expected = migration(name), EXPECTATIONS[name]
    assert ("left alone" if result.blocked else "migrated") == expected["migrate"]
    if result.blocked:
        assert result.text == source(name).text
        assert sorted({remark.subject for remark in result.remarks}) == expected["because"]
    else:
        assert result.applied == expected["rewrites"]


@pytest.mark.parametrize("name", MIGRATED)
def test_migrated_scripts_pass_check_and_migrate_to_themselves(name):
    new = replace(source(name), text=migration(name).text)
    findings, _ = check_source(new)
    left = [finding for finding in findings if finding.run is not Outcome.HANDLED]
    assert [finding for finding in left if finding.severity is not Severity.NOTE] == []
    assert migrate_source(new).text == new.text


@pytest.mark.parametrize("name", SCRIPTS)
def test_migrated_scripts_compute_exactly_the_same_natively(name, native, migrated):
    """Those that are left alone run natively, too."""
    before = native(name).numbers
    if name in MIGRATED:
        after = migrated(name, "native")
        assert after.numbers == before
        assert after.updates == 0


@pytest.mark.parametrize("name", MIGRATED)
def test_migrated_scripts_compute_the_same_on_the_emulator(name, native, migrated):
    after = migrated(name, "emulator")
    tolerance = max(EXPECTATIONS[name].get("emulator tolerance", 1e-5), OLDER_TOLERANCE.get(name, 0))
    assert after.numbers == pytest.approx(native(name).numbers, rel=tolerance)
    assert after.updates > 0, "nothing was trained on the device"


def test_what_run_trains_is_what_migrate_writes():
    from tests.running.test_corpus import REFUSED

    assert set(MIGRATED) == set(SCRIPTS) - set(REFUSED)


def test_the_page_shows_the_corpus():
    """`python -m tests.migration.corpus_page` writes it."""
    from tests.migration.corpus_page import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == page()
