"""tools/release_check.py: a release whose texts disagree is refused before anything is built."""

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-01-31\n"
CITATION = "title: Sparsona\nversion: 1.2.0\nlicense: Apache-2.0\n"


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_check", ROOT / "tools" / "release_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_texts_that_agree_pass(release: ModuleType) -> None:
    release.check_texts("1.2.0", CHANGELOG, CITATION)


@pytest.mark.parametrize(
    ("version", "changelog", "citation", "why"),
    [
        ("1.2", CHANGELOG, CITATION, "MAJOR.MINOR.PATCH"),
        ("1.2.1", CHANGELOG, CITATION, r"CHANGELOG.md: no line '## \[1.2.1\]"),
        ("1.2.0", CHANGELOG.replace(" - 2026-01-31", ""), CITATION, "CHANGELOG.md: no line"),
        ("1.2.0", CHANGELOG, CITATION.replace("1.2.0", "1.1.0"), "CITATION.cff: version is not 1.2.0"),
    ],
)
def test_texts_that_differ_are_refused(
    release: ModuleType, version: str, changelog: str, citation: str, why: str
) -> None:
    with pytest.raises(SystemExit, match=why):
        release.check_texts(version, changelog, citation)


def test_citation_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_uv_and_pip_install_the_same_versions() -> None:
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    uv = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]
    assert uv["constraint-dependencies"] == [line for line in lines if line]
