"""Patterns choose the files that a slow, plain reading of their rules chooses."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrag.errors import InvalidParameterError
from longrag.ingestion.files import find_files
from longrag.ingestion.patterns import PathPatterns
from longrag.ingestion.sources import read_documents

NAMES = st.text("ab.", min_size=1, max_size=3).filter(lambda name: name.strip("."))
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PARTS = st.one_of(NAMES, st.sampled_from(["*", "**", "?", "a*", "*.b", "[ab]"]))
PATTERNS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


def whole(path, pattern):
    """Tell whether the parts of a path are those of a pattern, trying every length of ``**``."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(whole(path[at:], pattern[1:]) for at in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and whole(path[1:], pattern[1:])


def matches(path, pattern):
    parts, wanted = path.split("/"), pattern.split("/")
    begins = [0] if len(wanted) > 1 else range(len(parts))
    return any(
        whole(parts[begin:end], wanted) for begin in begins for end in range(begin, len(parts) + 1)
    )


@given(PATHS, st.lists(PATTERNS, max_size=3), st.lists(PATTERNS, max_size=3))
def test_a_path_is_kept_by_the_rules(path, include, exclude):
    kept = PathPatterns(include, exclude).keep(path)
    included = not include or any(matches(path, one) for one in include)
    assert kept == (included and not any(matches(path, one) for one in exclude))


@given(PATHS, st.lists(PATTERNS, max_size=3))
def test_no_folder_with_a_kept_file_is_passed_over(path, exclude):
    patterns = PathPatterns((), exclude)
    if patterns.keep(path):
        parts = path.split("/")
        assert all(patterns.enter("/".join(parts[:end])) for end in range(1, len(parts)))


ALL = "changelog.md drafts/a.md guide/drafts/b.md guide/old/first.md guide/start.md index.md"


@pytest.fixture
def docs(tmp_path):
    for name in (
        "index.md",
        "changelog.md",
        "guide/start.md",
        "guide/old/first.md",
        "drafts/a.md",
        "guide/drafts/b.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("Text.")
    return tmp_path


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ((), ["changelog*"], ALL.replace("changelog.md ", "")),
        ((), ["drafts"], "changelog.md guide/old/first.md guide/start.md index.md"),
        ((), ["drafts/"], "changelog.md guide/old/first.md guide/start.md index.md"),
        ((), ["/drafts"], ALL.replace(" drafts/a.md", "")),
        ((), ["guide/**/first.md"], ALL.replace("guide/old/first.md ", "")),
        (["guide"], (), "guide/drafts/b.md guide/old/first.md guide/start.md"),
        (["guide/*"], ["guide/old"], "guide/drafts/b.md guide/start.md"),
        (["guide/*.md"], (), "guide/start.md"),
        (["*.md"], ["guide", "drafts"], "changelog.md index.md"),
    ],
)  # fmt: skip
def test_what_is_included_and_not_excluded_is_read(docs, include, exclude, expected):
    documents = read_documents(docs, include=include, exclude=exclude)
    assert [document.id for document in documents] == expected.split()


def test_a_single_file_is_subject_to_patterns_too(docs):
    assert find_files(docs / "index.md", patterns=PathPatterns((), ["*.md"])) == []


@pytest.mark.parametrize("bad", [[""], ["/"], ["../a"], ["a/../../b"], [3], "*.md"])
def test_a_bad_pattern_is_refused(docs, bad):
    for name in ("include", "exclude"):
        with pytest.raises(InvalidParameterError, match=f"{name} must be"):
            read_documents(docs, **{name: bad})
