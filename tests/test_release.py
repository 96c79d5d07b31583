"""The distributions that a release uploads: their files, their metadata, and a README that reads well elsewhere."""

from __future__ import annotations

import email
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import ignite_ipu

ROOT = Path(__file__).parents[1]
INFORMATION = f"ignite_ipu-{ignite_ipu.__version__}.dist-info/"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Return the wheel and the source distribution, as the build backend writes them."""
    backend = pytest.importorskip("hatchling.build")
    folder = tmp_path_factory.mktemp("distributions")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        built = [folder / build(str(folder)) for build in (backend.build_wheel, backend.build_sdist)]
    with zipfile.ZipFile(built[0]) as wheel, tarfile.open(built[1]) as sdist:
        yield wheel, sdist


def files(folder):
    """Return the files of a folder, by their paths from the root of the project."""
    found = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*") if path.is_file()}
    return {name for name in found if not re.search(r"__pycache__|_build/|\.ruff_cache", name)}


def test_the_wheel_has_the_package_and_nothing_else(distributions):
    """Data files and type information are in it; tests and documentation are not."""
    wheel, _ = distributions
    names = {name for name in wheel.namelist() if not name.startswith(INFORMATION)}
    assert names == files("ignite_ipu") | {"ignite_ipu_autoload.py"}
    assert "ignite_ipu/py.typed" in names
    assert f"{INFORMATION}licenses/LICENSE" in wheel.namelist()


def test_the_source_distribution_builds_tests_and_documentation(distributions):
    _, sdist = distributions
    root = f"ignite_ipu-{ignite_ipu.__version__}/"
    names = {name[len(root) :] for name in sdist.getnames() if name.startswith(root)}
    expected = {*files("ignite_ipu"), *files("docs"), *files("examples"), *files("tests")}
    assert expected - names == set()
    assert {path.name for path in ROOT.glob("*.md")} | {"LICENSE", "Makefile", "pyproject.toml"} <= names
    assert {path.name for path in ROOT.glob("constraints*.txt")} <= names


def test_metadata(distributions):
    """Each extra and each link has its place; the description is the README."""
    wheel, _ = distributions
    metadata = email.message_from_bytes(wheel.read(f"{INFORMATION}METADATA"))
    assert metadata["Version"] == ignite_ipu.__version__
    assert set(metadata.get_all("Provides-Extra")) >= {"accelerate", "migrate", "plot", "examples"}
    assert [link.split(", ")[0] for link in metadata.get_all("Project-URL")] == ["Homepage", "Changelog"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True).decode() == (ROOT / "README.md").read_text(encoding="utf-8")
    entry_points = wheel.read(f"{INFORMATION}entry_points.txt").decode()
    assert "ignite-ipu = ignite_ipu.cli:main" in entry_points


def test_links_of_the_readme_work_on_a_package_index():
    """They are absolute, or there are none."""
    tokens = MarkdownIt("commonmark").parse((ROOT / "README.md").read_text(encoding="utf-8"))
    links = [child.attrGet("href") or child.attrGet("src") for token in tokens for child in token.children or ()]
    assert [link for link in links if link and not re.match(r"https://|#", str(link))] == []


def test_the_changelog_is_read_in_two_minutes():
    """It begins with this version, at 250 words a minute for each release."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert releases[0].startswith(ignite_ipu.__version__)
    assert max(len(release.split()) for release in releases) <= 500
