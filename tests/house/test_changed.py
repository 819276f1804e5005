"""`make quick` runs what a change touches first."""

import subprocess

import pytest

from tests.changed import ROOT, changed_files, first_tests, mirrors_of


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "longrag/retrieval/fusion.py",
            ["tests/longrag/retrieval/test_fusion.py"],
        ),
        (
            "longrag/models/vllm/session.py",
            ["tests/longrag/models/vllm"],
        ),
        (
            "langchain_longrag/recipes/__init__.py",
            ["tests/langchain_longrag/recipes"],
        ),
        ("longrag/journal.py", ["tests/longrag/test_journal.py"]),
        ("longrag/errors.py", []),
        ("tests/longrag/test_claims.py", ["tests/longrag/test_claims.py"]),
        ("tests/images.py", ["tests/longrag/retrieval/test_multimodal.py"]),
        ("docs/index.md", []),
        ("benchmarks/maxp.py", []),
    ],
)
def test_a_file_is_mapped_to_the_tests_that_mirror_it(path, expected):
    assert set(expected) <= set(mirrors_of(path))
    assert bool(expected) == bool(mirrors_of(path))
    assert all((ROOT / test).exists() for test in mirrors_of(path))


def test_a_room_takes_in_its_modules():
    room, module = "longrag/models/vllm/session.py", "longrag/models/vllm/model.py"
    assert first_tests([room, module]) == [
        "tests/conformance/test_one_table.py",
        "tests/house/test_house.py",
        "tests/longrag/models/vllm",
    ]


def test_committed_uncommitted_and_new_files_count_and_deleted_ones_do_not(tmp_path):
    def git(*command):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command],
                       cwd=tmp_path, check=True, capture_output=True)  # fmt: skip

    git("init", "-b", "main")
    for name in ("kept", "edited", "deleted", "committed"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "-m", "One")
    git("checkout", "-b", "work")
    (tmp_path / "committed").write_text("other")
    git("commit", "-am", "Two")
    (tmp_path / "edited").write_text("other")
    (tmp_path / "new").write_text("new")
    (tmp_path / "deleted").unlink()
    git("checkout", "main")
    (tmp_path / "kept").write_text("changed on main")
    git("commit", "-m", "Three", "kept")
    git("checkout", "work")
    assert changed_files("main", tmp_path) == ["committed", "edited", "new"]
