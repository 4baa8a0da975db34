"""CITATION.cff is valid: the keys and types that version 1.2.0 of the Citation File Format requires."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

CITATION = Path(__file__).parent.parent / "CITATION.cff"
REQUIRED = {"authors", "cff-version", "message", "title"}
KEYS = REQUIRED | {
    *("abstract", "commit", "contact", "date-released", "doi", "identifiers", "keywords", "license", "license-url"),
    *("preferred-citation", "references", "repository", "repository-artifact", "repository-code", "type", "url"),
    "version",
}
REFERENCE_TYPES = {
    *("art", "article", "audiovisual", "bill", "blog", "book", "catalogue", "conference", "conference-paper"),
    *("data", "database", "dictionary", "edited-work", "encyclopedia", "film-broadcast", "generic"),
    *("government-document", "grant", "hearing", "historical-work", "legal-case", "legal-rule", "magazine-article"),
    *("manual", "map", "multimedia", "music", "newspaper-article", "pamphlet", "patent", "personal-communication"),
    *("proceedings", "report", "serial", "slides", "software", "software-code", "software-container"),
    *("software-executable", "software-virtual-machine", "sound-recording", "standard", "statute", "thesis"),
    *("unpublished", "video", "website"),
}
STATUS = {"abstract", "advance-online", "in-preparation", "in-press", "preprint", "submitted"}
PERSON = {"affiliation", "alias", "email", "family-names", "given-names", "name-particle", "name-suffix", "orcid"}


def problems(citation: Mapping[str, Any]) -> Iterable[str]:
    """What a validator would refuse."""
    yield from (f"{key} is missing" for key in REQUIRED - citation.keys())
    yield from (f"{key} is no key" for key in citation.keys() - KEYS)
    if citation.get("cff-version") != "1.2.0":
        yield "cff-version is not 1.2.0"
    if citation.get("type", "software") not in ("software", "dataset"):
        yield f"type {citation['type']!r}"
    yield from authors("authors", citation.get("authors", []))
    for number, reference in enumerate(citation.get("references", [])):
        where = f"references[{number}]"
        yield from (f"{where}.{key} is missing" for key in {"authors", "title", "type"} - reference.keys())
        if reference.get("type") not in REFERENCE_TYPES:
            yield f"{where}.type {reference.get('type')!r}"
        if reference.get("status", "submitted") not in STATUS:
            yield f"{where}.status {reference['status']!r}"
        if not isinstance(reference.get("year", 2000), int):
            yield f"{where}.year {reference['year']!r}"
        yield from authors(f"{where}.authors", reference.get("authors", []))


def authors(where: str, people: list[dict[str, str]]) -> Iterable[str]:
    """A list of persons, and of entities with a name."""
    if not people:
        yield f"{where} is empty"
    for number, person in enumerate(people):
        if not person or ("name" not in person and not person.keys() <= PERSON):
            yield f"{where}[{number}] is neither a person nor an entity"


@pytest.fixture
def citation() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    read: dict[str, Any] = yaml.safe_load(CITATION.read_text())
    return read


def test_the_citation_file_is_valid(citation: dict[str, Any]) -> None:
    assert list(problems(citation)) == []


def test_an_unknown_type_is_found(citation: dict[str, Any]) -> None:
    citation["references"][2]["type"] = "manuscript"
    del citation["message"]
    assert sorted(problems(citation)) == ["message is missing", "references[2].type 'manuscript'"]
